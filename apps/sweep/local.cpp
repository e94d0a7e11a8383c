#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "apps/console.hpp"
#include "apps/devices.hpp"
#include "apps/exit_codes.hpp"
#include "apps/progress.hpp"
#include "apps/sweep/pool.hpp"
#include "apps/sweep/submit.hpp"
#include "base/text.hpp"

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
    std::vector<std::string> command = {this_program(),
                                        "sweep",
                                        "work",
                                        sweep.out,
                                        "--shard",
                                        shard,
                                        "-j",
                                        std::to_string(std::max(1, choices.jobs)),
                                        "--progress",
                                        "plain",
                                        "--end-with-parent"};
    if (!choices.device.empty()) command.insert(command.end(), {"--device", choices.device});
    if (!choices.stage.empty()) command.insert(command.end(), {"--stage", choices.stage});
    tasks.push_back({"shard " + shard, command, fmt::format("{}/logs/shard-{}.log", sweep.out, i)});
  }
  return tasks;
}

// The last line that a worker has logged.
std::string last_line(const std::string& log) {
  std::ifstream in(log);
  std::string line, last;
  while (std::getline(in, line))
    if (!line.empty()) last = line;
  return last;
}

std::string ending_text(const PoolTask& task, const Ending& ending) {
  if (ending.signal != 0) return fmt::format("{} was killed by signal {}, see {}", task.name, ending.signal, task.log);
  if (ending.code == 0) return task.name + " done";
  if (ending.code == kSomeFailed) return task.name + " done, with failed cells";
  if (ending.code == kStoppedEarly || ending.code == kInterrupted) return task.name + " stopped";
  return fmt::format("{} ended with {}: {}", task.name, ending.code, last_line(task.log));
}

// Reports the progress of the workers from time to time.
class PoolProgress {
 public:
  PoolProgress(const Sweep& sweep, Console& console) : sweep_(sweep), console_(console) {}
  void moment() {
    if (Clock::now() - told_ < kEvery) return;
    told_ = Clock::now();
    const SweepStatus status = status_of(sweep_.manifest, results_of(sweep_.out, sweep_.manifest));
    console_.note(fmt::format("cells {}/{} · failed {} · ETA {}", status.ok, status.cells,
                              status.failed + status.parked, eta_text(status)));
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kEvery{10};

  std::string eta_text(const SweepStatus& status) const {
    const double done = sweep_.status.cost_left - status.cost_left;
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    return done > 0 ? duration_text(seconds * status.cost_left / done) : "?";
  }

  const Sweep& sweep_;  // state at the start
  Console& console_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point told_ = start_;
};

void show(const std::vector<PoolTask>& tasks) {
  for (const PoolTask& task : tasks) {
    std::vector<std::string> words;
    for (const std::string& word : task.command) words.push_back(shell_quoted(word));
    print(join(words, " ") + "\n");
  }
}

// Runs missing cells once. Returns the exit code of a worker that ended for a reason which another round will not fix
// (a missing trace, no device), otherwise 0.
int run_round(const std::vector<PoolTask>& tasks, int32_t workers, const Sweep& sweep, Console& console) {
  constexpr int kFirst = 2, kLast = 5;
  int code = 0;
  PoolProgress progress(sweep, console);
  run_pool(tasks, workers,
           {[&](const PoolTask& task, const Ending& ending) {
              console.note(ending_text(task, ending));
              if (code == 0 && ending.code >= kFirst && ending.code <= kLast) code = ending.code;
            },
            [&] { progress.moment(); }});
  return code;
}

}  // namespace

int submit_local(const SubmitChoices& choices, Context& context) {
  constexpr int32_t kShardsPerWorker = 4;
  Console& console = context.console;
  Sweep sweep = sweep_in(choices.out);
  const int32_t workers = local_workers(choices);
  const int32_t shards = choices.shards > 0 ? choices.shards : sweep.at_most_units(double(workers) * kShardsPerWorker);
  if (choices.dry_run) return show(tasks_of(choices, sweep, shards)), 0;
  in_directory(sweep.out, [&] { fs::create_directories(fs::path(sweep.out) / "logs"); });
  for (int round = 0; round < choices.rounds && !sweep.status.complete(); ++round) {
    const std::vector<PoolTask> tasks = tasks_of(choices, sweep, shards);
    console.note(
        fmt::format("{} of {} shards left, {} workers, logs in {}/logs", tasks.size(), shards, workers, sweep.out));
    const int code = run_round(tasks, workers, sweep, console);
    if (StopSignals::drain()) {
      console.note("stopped: run the same command to continue");
      return StopSignals::exit_code();
    }
    sweep = sweep_in(choices.out);
    if (code != 0 && !sweep.status.complete()) return code;
  }
  return merge_sweep(sweep, false, context);
}

}  // namespace kvreplay::app
