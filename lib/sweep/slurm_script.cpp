#include "sweep/slurm_script.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"

namespace kvreplay {
namespace {

constexpr int64_t kWarning = 120;  // seconds between the signal and the limit
constexpr int64_t kMergeLimit = 3600;

int64_t warning_s(const SlurmJob& job) { return std::min(kWarning, job.limit_s / 4); }

// HH:MM:SS, rounded up to a minute: Slurm counts in minutes.
std::string limit_text(int64_t seconds) {
  const int64_t minutes = (seconds + 59) / 60;
  return fmt::format("{:02}:{:02}:00", minutes / 60, minutes % 60);
}

std::string directives(const SlurmJob& job, const std::string& log) {
  std::string text = fmt::format("#SBATCH --output={}/slurm/{}\n", job.out, log);
  if (job.memory_mb > 0) text += fmt::format("#SBATCH --mem={}M\n", job.memory_mb);
  for (const std::string& directive : job.directives) text += fmt::format("#SBATCH {}\n", directive);
  return text;
}

}  // namespace

std::string slurm_array_script(const SlurmJob& job) {
  std::string text = "#!/bin/bash\n";
  text += fmt::format("#SBATCH --job-name={}\n", job.name);
  text += fmt::format("#SBATCH --array={}{}\n", job.array,
                      job.at_once > 0 ? fmt::format("%{}", job.at_once) : "");
  text += fmt::format("#SBATCH --ntasks=1\n#SBATCH --cpus-per-task={}\n#SBATCH --time={}\n", job.cpus,
                      limit_text(job.limit_s));
  // B: and exec belong together: the signal goes to what takes the place of this script. What a lost node had
  // is submitted again by the merge job, at once; Slurm would hold a requeued task for two minutes.
  text += fmt::format("#SBATCH --signal=B:USR1@{}\n#SBATCH --no-requeue\n#SBATCH --open-mode=append\n",
                      warning_s(job));
  text += directives(job, "%A_%a.log");
  text += fmt::format("exec {} sweep work {} --shard \"$SLURM_ARRAY_TASK_ID/{}\" --time-budget {}s -j {}",
                      shell_quoted(job.program), shell_quoted(job.out), job.shards,
                      job.limit_s - warning_s(job), job.cpus);
  if (!job.device.empty()) text += " --device " + shell_quoted(job.device);
  if (!job.stage.empty()) text += fmt::format(" --stage \"{}\"", job.stage);
  return text + " --progress plain\n";
}

std::string slurm_merge_script(const SlurmJob& job) {
  std::string text = "#!/bin/bash\n";
  text += fmt::format("#SBATCH --job-name={}-merge\n#SBATCH --cpus-per-task=1\n#SBATCH --time={}\n", job.name,
                      limit_text(kMergeLimit));
  SlurmJob small = job;
  small.memory_mb = std::min<int64_t>(job.memory_mb, 500);
  text += directives(small, "merge_%j.log");
  text += fmt::format("{} sweep merge {}\ncode=$?\n", shell_quoted(job.program), shell_quoted(job.out));
  if (!job.resubmit.empty()) text += fmt::format("[ $code -eq 75 ] && exec {}\n", job.resubmit);
  return text + "exit $code\n";
}

}  // namespace kvreplay
