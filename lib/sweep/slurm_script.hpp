#pragma once
#include <string>
#include <vector>

namespace kvreplay {

// What a batch script for Slurm needs to know. Texts are put into the script as they are, paths in quotes.
struct SlurmJob {
  std::string name, program, out;
  int32_t shards = 1;
  std::string array;    // "0-19" or "3,7-9"
  int32_t at_once = 0;  // tasks that run at a time; 0: as many as Slurm gives
  int32_t cpus = 1;
  int64_t memory_mb = 0;  // 0: the site's default
  int64_t merge_memory_mb = 500;
  int64_t limit_s = 3600;
  std::string device;                   // "": as planned
  std::string stage;                    // folder on the node, may name a variable of the shell; "": none
  std::vector<std::string> directives;  // further #SBATCH options, e.g. --partition=long
  std::string resubmit;                 // command line that continues an incomplete sweep; "": none
};

// Why there can be no script for a job, "" if there can.
std::string slurm_cannot_take(const SlurmJob& job);
// A job array in which each task works on one shard. It is told 2 minutes before its time is over, finishes
// the head in work and leaves with 75.
std::string slurm_array_script(const SlurmJob& job);
// The job that merges, to be started after the array however it ended.
std::string slurm_merge_script(const SlurmJob& job);

}  // namespace kvreplay
