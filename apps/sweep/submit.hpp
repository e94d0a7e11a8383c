#pragma once
#include "apps/sweep/sweep.hpp"

// `kvreplay sweep submit`: common part of its engines.

namespace kvreplay::app {

struct SubmitChoices {
  std::string out, engine, device, stage, time = "1h", task_time = "30m";
  int32_t shards = 0, workers = 0, jobs = 0, at_once = 0, array_limit = 1000, rounds = 3;
  int64_t memory_mb = 0;
  std::vector<std::string> sbatch;
  bool dry_run = false, wait = false;
};

// The absolute path of this program.
std::string this_program();
// What a job on another machine starts: this program, or Python's kvreplay where it hosts methods of installed
// packages.
std::string command_of_jobs();

// Runs workers on this machine, round after round until no cell is missing, and merges. Returns the exit code.
int submit_local(const SubmitChoices& choices, Context& context);
// Submits a job array and a merge after it.
int submit_slurm(const SubmitChoices& choices, Context& context);

}  // namespace kvreplay::app
