#pragma once
#include <string>
#include <vector>

namespace kvreplay {

// Input of a batch script for Slurm. Texts are inserted unchanged, paths in quotes.
struct SlurmJob {
  std::string name, program, out;
  int32_t shards = 1;
  std::string array;    // "0-19" or "3,7-9"
  int32_t at_once = 0;  // tasks that run at a time; 0: Slurm decides
  int32_t cpus = 1;
  int64_t memory_mb = 0;  // 0: the site's default
  int64_t merge_memory_mb = 500;
  int64_t limit_s = 3600;
  std::string device;                   // "": as planned
  std::string stage;                    // folder on the node, may name a variable of the shell; "": none
  std::vector<std::string> directives;  // further #SBATCH options, e.g. --partition=long
  std::string resubmit;                 // command line that continues an incomplete sweep; "": none
};

// Why no script can be written for a job; "" if one can.
std::string slurm_problem(const SlurmJob& job);
// A job array in which each task works on one shard. A task gets a signal 2 minutes before its time limit, finishes the
// head in work and exits with 75.
std::string slurm_array_script(const SlurmJob& job);
// The job that merges; it starts after the array, whether or not that succeeded.
std::string slurm_merge_script(const SlurmJob& job);

}  // namespace kvreplay
