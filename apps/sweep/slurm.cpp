#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "apps/sweep/submit.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "plan/estimate.hpp"
#include "results/output_files.hpp"
#include "sweep/shard.hpp"
#include "sweep/slurm_script.hpp"

// `kvreplay sweep submit --engine slurm`.

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;

// Number of shards for tasks of about the wanted length, within a site's limit.
int32_t slurm_shards(const SubmitChoices& choices, const Sweep& sweep, int32_t cpus) {
  if (choices.shards > 0) return choices.shards;
  const double seconds = core_seconds(sweep.manifest.cost()) / cpus;
  const double wanted = std::ceil(seconds / double(parse_duration("--task-time", choices.task_time)));
  return sweep.at_most_units(std::min(wanted, double(choices.array_limit)));
}

std::string resubmit_command(const SubmitChoices& choices, const Sweep& sweep, int32_t shards) {
  if (choices.rounds <= 1) return "";
  std::vector<std::string> words = {command_of_jobs(), "sweep",
                                    "submit",          sweep.out,
                                    "--engine",        "slurm",
                                    "--shards",        std::to_string(shards),
                                    "--rounds",        std::to_string(choices.rounds - 1),
                                    "--time",          choices.time};
  const auto add = [&](const char* option, int64_t value) {
    if (value > 0) words.insert(words.end(), {option, std::to_string(value)});
  };
  const auto add_text = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  add("-j", choices.jobs), add("--at-once", choices.at_once), add("--mem", choices.memory_mb);
  add("--array-limit", choices.array_limit);
  add_text("--device", choices.device), add_text("--stage", choices.stage);
  for (const std::string& directive : choices.sbatch) words.push_back("--sbatch=" + directive);
  for (std::string& word : words) word = shell_quoted(word);
  return join(words, " ");
}

SlurmJob job_of(const SubmitChoices& choices, const Sweep& sweep) {
  constexpr int32_t kUsualCpus = 4;
  constexpr int64_t kSpareMb = 256;
  SlurmJob job;
  job.name = "kvreplay-" + sweep.manifest.run_name;
  job.program = command_of_jobs(), job.out = sweep.out;
  job.cpus = choices.jobs > 0 ? choices.jobs : kUsualCpus;
  job.shards = slurm_shards(choices, sweep, job.cpus);
  job.array = ranges_text(sweep.missing(job.shards));
  job.at_once = choices.at_once;
  job.memory_mb =
      choices.memory_mb > 0 ? choices.memory_mb : kSpareMb + job.cpus * (sweep.manifest.bytes_peak * 5 / 4 >> 20);
  constexpr int64_t kMergeMb = 200, kCellsPerMb = 1000;
  job.merge_memory_mb = std::max(choices.memory_mb, kMergeMb + int64_t(sweep.manifest.cells.size()) / kCellsPerMb);
  job.limit_s = parse_duration("--time", choices.time);
  job.device = choices.device, job.stage = choices.stage;
  job.directives = choices.sbatch;
  job.resubmit = resubmit_command(choices, sweep, job.shards);
  return job;
}

// Returns the output of sbatch --parsable: the job's number.
std::string submit_script(const std::vector<std::string>& options, const fs::path& script) {
  std::string command = "sbatch --parsable";
  for (const std::string& option : options) command += " " + shell_quoted(option);
  command += " " + shell_quoted(script.string());
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  if (!pipe) throw OutputError("sbatch cannot be started");
  std::string said;
  std::array<char, 256> piece{};
  while (std::fgets(piece.data(), int(piece.size()), pipe.get()) != nullptr) said += piece.data();
  const size_t end = said.find_first_not_of("0123456789");
  if (end == 0 || said.empty())
    throw OutputError(
        fmt::format("sbatch did not take {}. Is Slurm here? --engine local needs none; the script can "
                    "be submitted by hand",
                    script.string()));
  return said.substr(0, end);
}

struct Scripts {
  fs::path array, merge;
};

Scripts write_scripts(const SlurmJob& job) {
  const fs::path dir = fs::path(job.out) / "slurm";
  in_directory(dir, [&] { fs::create_directories(dir); });
  const Scripts scripts{dir / "array.sbatch", dir / "merge.sbatch"};
  publish_text(scripts.array, slurm_array_script(job));
  publish_text(scripts.merge, slurm_merge_script(job));
  return scripts;
}

// Submits arrays until no cell is missing, then writes the table. This process waits for each.
int wait_for_slurm(const SubmitChoices& choices, Sweep sweep, Context& context) {
  for (int round = 0; round < choices.rounds && !sweep.status.complete(); ++round) {
    const Scripts scripts = write_scripts(job_of(choices, sweep));
    context.console.note(fmt::format("array of round {}: {}", round + 1, submit_script({"--wait"}, scripts.array)));
    sweep = sweep_in(choices.out);
  }
  return merge_sweep(sweep, false, context);
}

void check_options(const SubmitChoices& choices) {
  for (const std::string& directive : choices.sbatch)
    if (!directive.starts_with("-") || directive.find('\n') != std::string::npos)
      throw ConfigError(
          fmt::format("--sbatch={}: must be an option of sbatch, for example --sbatch=--partition=long", directive));
  if (choices.shards > choices.array_limit)
    throw ConfigError(fmt::format("--shards {}: an array of this site has at most {} tasks (--array-limit)",
                                  choices.shards, choices.array_limit));
}

// Shows the merge script, and how both scripts would be submitted.
void show_merge(const SlurmJob& job) {
  print(fmt::format("\n{}\n# sbatch --parsable {}\n# sbatch --dependency=afterany:JOB {}\n", slurm_merge_script(job),
                    shell_quoted(job.out + "/slurm/array.sbatch"), shell_quoted(job.out + "/slurm/merge.sbatch")));
}

}  // namespace

int submit_slurm(const SubmitChoices& choices, Context& context) {
  check_options(choices);
  Sweep sweep = sweep_in(choices.out);
  if (sweep.status.complete()) {
    if (!choices.dry_run) return merge_sweep(sweep, false, context);
    context.console.note("nothing is missing: would merge");
    return 0;
  }
  const SlurmJob job = job_of(choices, sweep);
  if (const std::string why = slurm_problem(job); !why.empty()) throw ConfigError(why);
  print(slurm_array_script(job));
  if (choices.dry_run) return show_merge(job), 0;
  if (choices.wait) return wait_for_slurm(choices, std::move(sweep), context);
  const Scripts scripts = write_scripts(job);
  const std::string array = submit_script({}, scripts.array);
  const std::string merge = submit_script({"--dependency=afterany:" + array}, scripts.merge);
  context.console.note(fmt::format("submitted {} as job {}, and {} after it as job {}", scripts.array.string(), array,
                                   scripts.merge.string(), merge));
  return 0;
}

}  // namespace kvreplay::app
