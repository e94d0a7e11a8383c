#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "devices.hpp"
#include "signals.hpp"
#include "sweep_pool.hpp"
#include "sweep_submit.hpp"

// `kvreplay sweep submit --engine local`.

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

int submit_local(const SubmitChoices& choices, Context& context) {
  constexpr int32_t kShardsPerWorker = 4;
  Sweep sweep = sweep_in(choices.out);
  const int32_t workers = local_workers(choices);
  const int32_t shards =
      choices.shards > 0 ? choices.shards : sweep.at_most_units(double(workers) * kShardsPerWorker);
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

}  // namespace kvreplay::app
