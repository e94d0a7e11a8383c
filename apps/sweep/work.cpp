#include <fmt/core.h>
#include <sys/prctl.h>

#include <csignal>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>

#include "apps/console.hpp"
#include "apps/devices.hpp"
#include "apps/engine_options.hpp"
#include "apps/exit_codes.hpp"
#include "apps/meta.hpp"
#include "apps/offered/registry.hpp"
#include "apps/replaying.hpp"
#include "apps/run_options.hpp"
#include "apps/summary.hpp"
#include "apps/sweep/sweep.hpp"
#include "base/errors.hpp"
#include "sweep/shard.hpp"
#include "sweep/staging.hpp"

// `kvreplay sweep work`: one worker on one shard.

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct WorkChoices {
  std::string out, shard = "0/1", time_budget, device, jobs, stage, progress = "auto";
  bool retry_parked = false, stale = false, end_with_parent = false;
};

// Ends the work when the next head would probably not finish in time. The longest head so far is the estimate.
class TimeBudget {
 public:
  explicit TimeBudget(const std::string& text) {
    if (!text.empty()) seconds_ = double(parse_duration("--time-budget", text));
  }
  void finish_head() {
    const double now = elapsed();
    longest_ = std::max(longest_, now - last_);
    last_ = now;
  }
  bool is_over() const { return seconds_ && elapsed() + longest_ > *seconds_; }

 private:
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  std::optional<double> seconds_;
  Clock::time_point start_ = Clock::now();
  double last_ = 0, longest_ = 0;
};

class Worker {
 public:
  Worker(const WorkChoices& choices, Console& console)
      : choices_(choices),
        console_(console),
        shard_(parse_shard(choices.shard)),
        time_(choices.time_budget),
        manifest_(read_manifest(choices.out)),
        keys_(manifest_.keys()),
        mine_(units_of(manifest_.units, shard_)),
        store_(choices.out, manifest_.save, false, process_record(manifest_.precision, device()),
               fmt::format("shard-{}", shard_.index)) {}

  int run() {
    if (choices_.end_with_parent) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    const std::vector<size_t> units = open_units_of_shard();
    warn_damaged_lines(store_.folder(), console_);
    if (units.empty()) {
      console_.note(fmt::format("shard {}: nothing left to do", choices_.shard));
      return failed_cells() > 0 ? kSomeFailed : 0;
    }
    const StopSignals signals;
    std::optional<Staging> staging;
    if (!choices_.stage.empty())
      staging.emplace(choices_.stage, [this](const std::string& text) { console_.note(text); });
    const ShardWork work = open(units, staging ? &*staging : nullptr);
    if (!work.cells.empty()) replay(work);
    return exit_code(work);
  }

 private:
  std::string device() const { return choices_.device.empty() ? manifest_.device : choices_.device; }

  // Whether the cell still has to be replayed.
  bool is_open(const std::string& key) const {
    const CellState state = state_of(key, store_.folder());
    if (state == CellState::ok) return choices_.stale && !store_.folder().shards().cells.at(key).own_build;
    return state != CellState::parked || choices_.retry_parked;
  }

  // Units that have killed their worker are last, so that they delay no others.
  std::vector<size_t> open_units_of_shard() const {
    std::vector<size_t> units = mine_;
    std::erase_if(units, [&](size_t u) {
      const auto keys = manifest_.units[u].keys_in(keys_);
      return std::none_of(keys.begin(), keys.end(), [&](const std::string& key) { return is_open(key); });
    });
    const std::map<int64_t, int32_t>& begun = store_.folder().shards().begun;
    const auto times = [&](size_t u) {
      const auto found = begun.find(int64_t(u));
      return found == begun.end() ? 0 : found->second;
    };
    std::stable_sort(units.begin(), units.end(), [&](size_t a, size_t b) { return times(a) < times(b); });
    return units;
  }

  ShardWork open(const std::vector<size_t>& units, Staging* staging) const {
    ShardRequest request;
    request.units = units;
    request.overrides = {text_override("output.dir", fs::absolute(choices_.out).string()),
                         text_override("run.device", device())};
    if (!choices_.jobs.empty()) request.overrides.push_back("run.jobs=" + choices_.jobs);
    if (staging != nullptr)
      request.place = [staging](const SweepTrace& trace, const TraceScope& scope) {
        return staging->copy(trace.path, scope);
      };
    ShardWork work = kvreplay::open_units(manifest_, request, known_methods(), metric_names());
    for (const std::string& problem : work.problems) console_.error(problem);
    return work;
  }

  std::vector<Cell> open_cells(const ShardWork& work) const {
    std::vector<Cell> todo;
    std::copy_if(work.cells.begin(), work.cells.end(), std::back_inserter(todo),
                 [&](const Cell& cell) { return is_open(cell.key); });
    return todo;
  }
  std::vector<double> costs_of(const std::vector<Cell>& cells, const ShardWork& work) const {
    std::vector<double> costs;
    for (const Cell& cell : cells) costs.push_back(manifest_.units[work.unit_of.at(cell.key)].cell_cost());
    return costs;
  }

  // Replays each cell once: a failed cell is tried again later, in another process.
  void replay(const ShardWork& work) {
    require_device(work.config);
    const std::vector<Cell> todo = open_cells(work);
    if (!todo.empty() && !StopSignals::drain() && !time_.is_over()) replay(work, todo);
  }
  void replay(const ShardWork& work, const std::vector<Cell>& todo) {
    const int jobs = work.config.run.jobs > 0 ? work.config.run.jobs : default_jobs();
    const size_t in_shard = cells_in_shard(), done = in_shard - todo.size();
    console_.note(fmt::format("plan {}, shard {}: {} cells, {} to replay, {} jobs", manifest_.name, choices_.shard,
                              in_shard, todo.size(), jobs));
    Progress progress(console_, Progress::mode_of(choices_.progress, console_.verbosity < 0), done, todo,
                      costs_of(todo, work));
    RunOptions options = engine_options(work.config, manifest_.every_row, open_files(work.traces));
    options.save = manifest_.save;
    options.jobs = jobs;
    options.continue_on_head_failure = true;
    options.drain = [this] { return time_.is_over() || gone_; };
    options.on_start = [&](const Cell& cell) { store_.begin(int64_t(work.unit_of.at(cell.key))); };
    replay_missing(todo,
                   {work.cells, std::move(options), store_, progress, console_, false, [this] { time_.finish_head(); },
                    [&](const Cell& cell, const CellResult& result) { return is_gone(work, cell, result); }});
    progress.end();
  }

  size_t cells_in_shard() const {
    size_t cells = 0;
    for (const size_t u : mine_) cells += manifest_.units[u].cells;
    return cells;
  }
  size_t failed_cells() const {
    size_t failed = 0;
    for (const size_t u : mine_)
      for (const std::string& key : manifest_.units[u].keys_in(keys_))
        failed += store_.folder().done().count(key) == 0 || store_.failed_here().count(key) != 0;
    return failed;
  }
  // If a trace cannot be opened any more, the cell has not failed: the trace was moved, or its disk is unavailable.
  bool is_gone(const ShardWork& work, const Cell& cell, const CellResult& result) {
    if (!result.lost || gone_) return gone_;
    try {
      (void)Trace(work.traces.at(cell.place.trace),
                  {std::vector<std::string>{cell.place.prompt}, std::vector<int32_t>{cell.place.layer}});
    } catch (const TraceError& e) {
      console_.error(e.what());
      gone_ = true;
    }
    return gone_;
  }

  int exit_code(const ShardWork& work) const {
    if (gone_) return kBadTrace;
    const auto untried = [&](const Cell& cell) {
      return is_open(cell.key) && store_.failed_here().count(cell.key) == 0;
    };
    const auto left = std::count_if(work.cells.begin(), work.cells.end(), untried);
    if (left > 0) {
      console_.note(fmt::format("stopped by {}: {} cells are left, run the same command to continue",
                                StopSignals::drain() ? "a signal" : "its time budget", left));
      return StopSignals::drain() ? StopSignals::exit_code() : kStoppedEarly;
    }
    if (work.exit_code != 0) return work.exit_code;
    const size_t failed = failed_cells();
    if (failed > 0)
      console_.warning(
          fmt::format("{} cells failed; run the same command to try those again that have failed fewer than "
                      "{} times (kvreplay sweep status {})",
                      failed, kMostAttempts, choices_.out));
    return failed > 0 ? kSomeFailed : 0;
  }

  const WorkChoices& choices_;
  Console& console_;
  const Shard shard_;
  TimeBudget time_;
  const Manifest manifest_;
  const Keys keys_;                 // keys of the plan
  const std::vector<size_t> mine_;  // units of the shard
  Store store_;
  std::atomic<bool> gone_ = false;  // a trace disappeared while it was read
};

}  // namespace

void add_sweep_work(Command& sweep) {
  Command command = sweep.command("work", "replay one shard of a plan; skips cells that are already done");
  const auto choices = std::make_shared<WorkChoices>();
  add_out_option(command, choices->out);
  command.option("--shard", choices->shard, "i/N: part i of N, i from 0 (default: 0/1, everything)").type("i/N");
  command
      .option("--time-budget", choices->time_budget,
              "exit with 75 when the next head would not finish by then: 50m, 1h30m")
      .type("TIME");
  command.option("-j,--jobs", choices->jobs, "threads; the numbers do not depend on it (default: as planned)")
      .type("N");
  command.option("--device", choices->device, "cpu or cuda[:N] (default: as planned)").type("DEVICE");
  command.option("--stage", choices->stage, "copy this shard's files to a disk of this node first, for example $TMPDIR")
      .type("DIR");
  command.flag("--retry-parked", choices->retry_parked, "one more attempt for cells that failed three times");
  command.flag("--stale", choices->stale, "replay cells that another build has computed");
  command.flag("--end-with-parent", choices->end_with_parent, "").group("");  // for workers whose pool is killed
  add_progress_option(command, choices->progress);
  command.footer(sweep_example("work out/first --shard 3/20 --time-budget 50m"));
  command.runs([choices](Context& context) { return Worker(*choices, context.console).run(); });
}

}  // namespace kvreplay::app
