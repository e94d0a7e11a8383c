#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "devices.hpp"
#include "plan/plan.hpp"
#include "results/output_files.hpp"
#include "signals.hpp"
#include "sweep.hpp"
#include "sweep/shard.hpp"
#include "sweep/slurm_script.hpp"
#include "sweep/status.hpp"
#include "sweep_pool.hpp"

// `kvreplay sweep submit`: workers on this machine, or a job array.

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;

struct SubmitChoices {
  std::string out, engine, device, stage, time = "1h", task_time = "30m";
  int32_t shards = 0, workers = 0, jobs = 0, at_once = 0, array_limit = 1000, rounds = 3;
  int64_t memory_mb = 0;
  std::vector<std::string> sbatch;
  bool dry_run = false, wait = false;
};

std::string this_program() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) throw OutputError("/proc/self/exe: cannot be read: " + error.message());
  return program.string();
}

struct Sweep {
  std::string out;  // absolute
  Manifest manifest;
  SweepStatus status;
  std::vector<int32_t> missing(int32_t shards) const {
    return missing_shards(manifest, results_of(out, manifest), shards);
  }
};

Sweep sweep_in(const std::string& out) {
  Sweep sweep{fs::absolute(out).lexically_normal().string(), read_manifest(out), {}};
  sweep.status = status_of(sweep.manifest, results_of(out, sweep.manifest));
  return sweep;
}

int32_t at_most_units(const Sweep& sweep, double shards) {
  return int32_t(std::clamp(shards, 1.0, double(sweep.manifest.units.size())));
}

// ---- this machine

int32_t local_workers(const SubmitChoices& choices) {
  return choices.workers > 0 ? choices.workers : std::max(1, default_jobs() / std::max(1, choices.jobs));
}

std::vector<PoolTask> tasks_of(const SubmitChoices& choices, const Sweep& sweep, int32_t shards) {
  std::vector<PoolTask> tasks;
  for (const int32_t i : sweep.missing(shards)) {
    const std::string shard = fmt::format("{}/{}", i, shards);
    std::vector<std::string> command = {
        this_program(), "sweep", "work", sweep.out,
        "--shard",      shard,   "-j",   std::to_string(std::max(1, choices.jobs)),
        "--progress",   "plain"};
    if (!choices.device.empty()) command.insert(command.end(), {"--device", choices.device});
    if (!choices.stage.empty()) command.insert(command.end(), {"--stage", choices.stage});
    tasks.push_back({"shard " + shard, command, fmt::format("{}/logs/shard-{}.log", sweep.out, i)});
  }
  return tasks;
}

std::string ending_text(const PoolTask& task, int code) {
  if (code == 0) return task.name + " done";
  if (code > 128) return fmt::format("{} was killed by signal {}, see {}", task.name, code - 128, task.log);
  return fmt::format("{} ended with {}, see {}", task.name, code, task.log);
}

int run_local(const SubmitChoices& choices, Context& context) {
  constexpr int32_t kShardsPerWorker = 4;
  Sweep sweep = sweep_in(choices.out);
  const int32_t workers = local_workers(choices);
  const int32_t shards =
      choices.shards > 0 ? choices.shards : at_most_units(sweep, double(workers) * kShardsPerWorker);
  if (choices.dry_run) {
    for (const PoolTask& task : tasks_of(choices, sweep, shards)) {
      std::vector<std::string> words;
      for (const std::string& word : task.command) words.push_back(shell_quoted(word));
      print(join(words, " ") + "\n");
    }
    return 0;
  }
  in_directory(sweep.out, [&] { fs::create_directories(fs::path(sweep.out) / "logs"); });
  for (int round = 0; round < choices.rounds && !sweep.status.complete(); ++round) {
    const std::vector<PoolTask> tasks = tasks_of(choices, sweep, shards);
    context.console.note(fmt::format("{} of {} shards, {} workers, logs in {}/logs", tasks.size(), shards,
                                     workers, sweep.out));
    run_pool(tasks, workers,
             [&](const PoolTask& task, int code) { context.console.note(ending_text(task, code)); });
    if (StopSignals::drain()) {
      context.console.note("stopped: run the same command to continue");
      return StopSignals::exit_code();
    }
    sweep = sweep_in(choices.out);
  }
  return merge_sweep(choices.out, false, context);
}

// ---- Slurm

// As many shards as make tasks of about the wanted length, within what a site allows.
int32_t slurm_shards(const SubmitChoices& choices, const Sweep& sweep, int32_t cpus) {
  if (choices.shards > 0) return choices.shards;
  const double hours = core_seconds(sweep.manifest.cost()) / cpus;
  const double wanted = std::ceil(hours / double(parse_duration("--task-time", choices.task_time)));
  return at_most_units(sweep, std::min(wanted, double(choices.array_limit)));
}

std::string resubmit_command(const SubmitChoices& choices, const Sweep& sweep, int32_t shards) {
  if (choices.rounds <= 1) return "";
  std::vector<std::string> words = {this_program(), "sweep",
                                    "submit",       sweep.out,
                                    "--engine",     "slurm",
                                    "--shards",     std::to_string(shards),
                                    "--rounds",     std::to_string(choices.rounds - 1),
                                    "--time",       choices.time};
  const auto add = [&](const char* option, int64_t value) {
    if (value > 0) words.insert(words.end(), {option, std::to_string(value)});
  };
  const auto add_text = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  add("-j", choices.jobs), add("--at-once", choices.at_once), add("--mem", choices.memory_mb);
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
  std::replace(job.name.begin(), job.name.end(), ' ', '_');
  job.program = this_program(), job.out = sweep.out;
  job.cpus = choices.jobs > 0 ? choices.jobs : kUsualCpus;
  job.shards = slurm_shards(choices, sweep, job.cpus);
  job.array = ranges_text(sweep.missing(job.shards));
  job.at_once = choices.at_once;
  job.memory_mb = choices.memory_mb > 0 ? choices.memory_mb
                                        : kSpareMb + job.cpus * (sweep.manifest.bytes_peak * 5 / 4 >> 20);
  job.limit_s = parse_duration("--time", choices.time);
  job.device = choices.device, job.stage = choices.stage;
  for (const std::string& directive : choices.sbatch) job.directives.push_back(directive);
  job.resubmit = resubmit_command(choices, sweep, job.shards);
  return job;
}

// The output of sbatch --parsable: the job's number.
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

// Array after array until nothing is missing, and then the table: by this process, which waits.
int wait_for_slurm(const SubmitChoices& choices, Context& context) {
  for (int round = 0; round < choices.rounds; ++round) {
    const Sweep sweep = sweep_in(choices.out);
    if (sweep.status.complete()) break;
    const Scripts scripts = write_scripts(job_of(choices, sweep));
    context.console.note(
        fmt::format("array of round {}: {}", round + 1, submit_script({"--wait"}, scripts.array)));
  }
  return merge_sweep(choices.out, false, context);
}

int run_slurm(const SubmitChoices& choices, Context& context) {
  const Sweep sweep = sweep_in(choices.out);
  if (sweep.status.complete()) return merge_sweep(choices.out, false, context);
  const SlurmJob job = job_of(choices, sweep);
  print(slurm_array_script(job));
  if (choices.dry_run) return 0;
  if (choices.wait) return wait_for_slurm(choices, context);
  const Scripts scripts = write_scripts(job);
  const std::string array = submit_script({}, scripts.array);
  const std::string merge = submit_script({"--dependency=afterany:" + array}, scripts.merge);
  context.console.note(fmt::format("submitted {} as job {}, and {} after it as job {}",
                                   scripts.array.string(), array, scripts.merge.string(), merge));
  return 0;
}

int submit(const SubmitChoices& choices, Context& context) {
  return choices.engine == "local" ? run_local(choices, context) : run_slurm(choices, context);
}

void add_slurm_options(CLI::App& command, SubmitChoices& choices) {
  const std::string group = "For --engine slurm";
  const auto add = [&](const char* name, auto& value, const char* help, const char* type) {
    return command.add_option(name, value, help)->type_name(type)->group(group);
  };
  add("--time", choices.time, "limit of a task (default: 1h); it ends 2 minutes before", "TIME");
  add("--task-time", choices.task_time, "what a task should take, if --shards is not given (default: 30m)",
      "TIME");
  add("--at-once", choices.at_once, "tasks that run at a time (default: no limit)", "N");
  add("--array-limit", choices.array_limit, "most tasks of an array on this site (default: 1000)", "N");
  add("--mem", choices.memory_mb, "memory of a task in MiB (default: estimated)", "MIB");
  add("--sbatch", choices.sbatch, "another line #SBATCH of the script: --sbatch=--partition=long", "OPTION")
      ->allow_extra_args(false);
  command.add_flag("--wait", choices.wait, "wait for the jobs and write the table")->group(group);
}

}  // namespace

void add_sweep_submit(CLI::App& sweep, std::vector<Command>& commands) {
  CLI::App* command =
      sweep.add_subcommand("submit", "start workers here, or as a Slurm job array, and merge");
  const auto choices = std::make_shared<SubmitChoices>();
  add_out_option(*command, choices->out);
  command->add_option("--engine", choices->engine, "local or slurm")
      ->required()
      ->check(CLI::IsMember({"local", "slurm"}));
  command->add_option("--shards", choices->shards, "parts that the plan is cut into (default: chosen)")
      ->type_name("N");
  command->add_option("--workers", choices->workers, "processes at a time, for local (default: one a core)")
      ->type_name("N");
  command->add_option("-j,--jobs", choices->jobs, "threads of a worker (default: 1 for local, 4 for slurm)")
      ->type_name("N");
  command->add_option("--device", choices->device, "cpu or cuda[:N] (default: as planned)")
      ->type_name("DEVICE");
  command->add_option("--stage", choices->stage, "copy what a worker reads to this folder of its node")
      ->type_name("DIR");
  command->add_option("--rounds", choices->rounds, "how often what is missing is started again (default: 3)")
      ->type_name("N");
  command->add_flag("-n,--dry-run", choices->dry_run, "only show what would be started");
  add_slurm_options(*command, *choices);
  commands.push_back({command, [choices](Context& context) { return submit(*choices, context); }});
}

}  // namespace kvreplay::app
