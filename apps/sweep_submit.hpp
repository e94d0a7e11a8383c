#pragma once
#include "sweep.hpp"
#include "sweep/status.hpp"

// `kvreplay sweep submit`: what its engines share.

namespace kvreplay::app {

struct SubmitChoices {
  std::string out, engine, device, stage, time = "1h", task_time = "30m";
  int32_t shards = 0, workers = 0, jobs = 0, at_once = 0, array_limit = 1000, rounds = 3;
  int64_t memory_mb = 0;
  std::vector<std::string> sbatch;
  bool dry_run = false, wait = false;
};

// A sweep as it was read.
struct Sweep {
  std::string out;  // absolute
  Manifest manifest;
  ResultsFolder folder;
  SweepStatus status;
  // Of `shards`, those that are not done.
  std::vector<int32_t> missing(int32_t shards) const { return missing_shards(manifest, folder, shards); }
  // A number of shards, from 1 to one a unit.
  int32_t at_most_units(double shards) const;
};
Sweep sweep_in(const std::string& out);

// The absolute path of this program.
std::string this_program();

// Workers on this machine, round after round until nothing is missing, and the merge. Returns the exit code.
int submit_local(const SubmitChoices& choices, Context& context);
// A job array and a merge after it.
int submit_slurm(const SubmitChoices& choices, Context& context);

}  // namespace kvreplay::app
