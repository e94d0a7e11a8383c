#include "sweep/slurm_script.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

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

// A file name in a directive: quoted, and each % that is not Slurm's doubled.
std::string log_path(const SlurmJob& job, const std::string& log) {
  std::string path;
  for (const char c : job.out) path += c == '%' ? std::string("%%") : std::string(1, c);
  return fmt::format("\"{}/slurm/{}\"", path, log);
}

std::string job_name(const SlurmJob& job) {
  std::string name = job.name;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-') c = '_';
  return name;
}

std::string directives(const SlurmJob& job, const std::string& log) {
  std::string text = fmt::format("#SBATCH --output={}\n", log_path(job, log));
  if (job.memory_mb > 0) text += fmt::format("#SBATCH --mem={}M\n", job.memory_mb);
  for (const std::string& directive : job.directives) text += fmt::format("#SBATCH {}\n", directive);
  return text;
}

}  // namespace

std::string slurm_problem(const SlurmJob& job) {
  const std::pair<const char*, const std::string*> texts[] = {{"the output directory", &job.out},
                                                              {"--stage", &job.stage}};
  for (const auto& [what, text] : texts)
    if (text->find_first_of("\n\r\"\\`") != std::string::npos)
      return fmt::format("{} {}: a batch script for Slurm cannot hold quotes, backslashes and line ends", what, *text);
  return "";
}

std::string slurm_array_script(const SlurmJob& job) {
  std::string text = "#!/bin/bash\n";
  text += fmt::format("#SBATCH --job-name={}\n", job_name(job));
  text += fmt::format("#SBATCH --array={}{}\n", job.array, job.at_once > 0 ? fmt::format("%{}", job.at_once) : "");
  text += fmt::format("#SBATCH --ntasks=1\n#SBATCH --cpus-per-task={}\n#SBATCH --time={}\n", job.cpus,
                      limit_text(job.limit_s));
  // B: and exec belong together: the signal goes to the process that replaces this script. The merge job resubmits the
  // work of a lost node at once; Slurm would hold a requeued task for two minutes.
  text += fmt::format("#SBATCH --signal=B:USR1@{}\n#SBATCH --no-requeue\n#SBATCH --open-mode=append\n", warning_s(job));
  text += directives(job, "%A_%a.log");
  text +=
      fmt::format("exec {} sweep work {} --shard \"$SLURM_ARRAY_TASK_ID/{}\" --time-budget {}s -j {}",
                  shell_quoted(job.program), shell_quoted(job.out), job.shards, job.limit_s - warning_s(job), job.cpus);
  if (!job.device.empty()) text += " --device " + shell_quoted(job.device);
  if (!job.stage.empty()) text += fmt::format(" --stage \"{}\"", job.stage);
  return text + " --progress plain\n";
}

std::string slurm_merge_script(const SlurmJob& job) {
  std::string text = "#!/bin/bash\n";
  text += fmt::format("#SBATCH --job-name={}-merge\n#SBATCH --cpus-per-task=1\n#SBATCH --time={}\n", job_name(job),
                      limit_text(kMergeLimit));
  SlurmJob small = job;
  small.memory_mb = job.merge_memory_mb;
  std::erase_if(small.directives, [](const std::string& d) {
    return d.find("gres") != std::string::npos || d.find("gpu") != std::string::npos;
  });
  text += directives(small, "merge_%j.log");
  text += fmt::format("{} sweep merge {}\ncode=$?\n", shell_quoted(job.program), shell_quoted(job.out));
  if (!job.resubmit.empty()) text += fmt::format("[ $code -eq 75 ] && exec {}\n", job.resubmit);
  return text + "exit $code\n";
}

}  // namespace kvreplay
