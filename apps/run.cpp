#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "apps/commands.hpp"
#include "apps/config_options.hpp"
#include "apps/devices.hpp"
#include "apps/earlier_results.hpp"
#include "apps/engine_options.hpp"
#include "apps/exit_codes.hpp"
#include "apps/meta.hpp"
#include "apps/progress.hpp"
#include "apps/replaying.hpp"
#include "apps/run_options.hpp"
#include "apps/signals.hpp"
#include "apps/summary.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "plan/estimate.hpp"
#include "plan/plan.hpp"
#include "trace/trace.hpp"

// `kvreplay run`: configuration -> traces -> cells -> results.

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;

struct Work {
  RunConfig config;
  std::vector<TraceInfo> traces;
  std::vector<Cell> plan;
  fs::path out;
  int jobs = 1;
};

Work prepare(const RunChoices& choices, Console& console) {
  LoadedRun loaded = load_run(choices, console);
  require_device(loaded.config);
  Work work{{}, {}, planned(choices, loaded), {}, 1};
  work.config = std::move(loaded.config), work.traces = std::move(loaded.traces);
  work.out = output_of(work.config);
  work.jobs = work.config.run.jobs > 0 ? work.config.run.jobs : default_jobs();
  return work;
}

int dry_run(const Work& work) {
  std::vector<Cell> todo = work.plan;
  if (std::error_code ignored; fs::is_directory(work.out / "shards", ignored))
    todo = missing_cells(work.plan, ResultsFolder(work.out, work.config.output, ""));
  double cost = 0;
  for (const double c : estimate(work.config, todo, work.traces).cost) cost += c;
  const double bytes = double(estimate(work.config, work.plan, work.traces).bytes_peak);
  print(fmt::format(
      "cells   {} ({} done, {} to replay)\nmemory  about {:.0f} MiB\ntime    about {} with {} jobs\noutput  "
      "{}\n",
      work.plan.size(), work.plan.size() - todo.size(), todo.size(), std::max(1.0, bytes / (1 << 20)),
      duration_text(core_seconds(cost) / work.jobs), work.jobs, work.out.string()));
  return 0;
}

struct Outcome {
  size_t finished = 0, failed = 0;
};

Outcome replay(const Work& work, const std::vector<Cell>& todo, const RunChoices& choices, Store& store,
               Console& console) {
  const PlanEstimate estimated = estimate(work.config, todo, work.traces);
  Progress progress(console, Progress::mode_of(choices.progress, console.verbosity < 0), work.plan.size() - todo.size(),
                    todo, estimated.cost);
  RunOptions options = engine_options(work.config, observes_rows(work.plan), open_files(work.config.traces));
  options.save = work.config.output;
  options.jobs = work.jobs;
  replay_missing(todo, {work.plan, std::move(options), store, progress, console, choices.fail_fast});
  progress.end();
  return {progress.finished_now(), progress.failed()};
}

// A method that never evicted, or a format that never rewrote a row, has not been tested by this run.
class Idle {
 public:
  Idle(const RunConfig& config, const std::vector<Cell>& plan) : config_(config) {
    for (const Cell& cell : plan) cells_[cell.key] = &cell;
  }
  void add(const Fields& row) {
    const Cell& cell = *cells_.at(row[column_index("key")]);
    if (row[column_index("status")] != "ok") return;
    const auto name = [&] { return instance_text(config_.methods[cell.variant->instance]); };
    const bool should_evict =
        !cell.budget.none() && cell.budget.tokens < cell.extent.tokens && !cell.method().info.reads_full_cache;
    if (should_evict && row[column_index("n_evictions")] == "0") ++idle_[name() + " evicted nothing"];
    if (cell.options().row_format.quantises() && row[column_index("n_quantised")] == "0")
      ++idle_[name() + " quantised nothing (kivi and gear need caches larger than R)"];
  }
  void tell(Console& console) const {
    for (const auto& [what, count] : idle_) console.warning(fmt::format("{} in {} cells", what, count));
  }

 private:
  const RunConfig& config_;
  std::unordered_map<std::string, const Cell*> cells_;
  std::map<std::string, size_t> idle_;
};

// What a run says of its table.
class TableTold {
 public:
  explicit TableTold(const Work& work) : idle_(work.config, work.plan) {
    std::vector<std::string> labels;
    for (const MethodInstance& instance : work.config.methods) labels.push_back(instance_text(instance));
    for (const Cell& cell : work.plan) {
      planned_.insert(cell.key);
      summary_.expect(cell.key, labels[cell.variant->instance], cell.budget.tokens);
    }
  }
  void add(const Fields& row) {  // of earlier runs' cells nothing is told again
    if (!planned_.count(row[column_index("key")])) return;
    summary_.add(row);
    failures_.add(row);
    idle_.add(row);
  }
  void tell(Console& console) const {
    print(summary_.text());
    failures_.tell(console);
    idle_.tell(console);
  }

 private:
  std::unordered_set<std::string> planned_;
  Summary summary_;
  Failures failures_;
  Idle idle_;
};

std::string record_of(const Work& work, const std::string& command_line) {
  return run_record(resolved_json(work.config), trace_records(work.traces), command_line).add("jobs", work.jobs).text();
}

// What the table will hold: the plan, and where nothing speaks against it what earlier runs have left.
Keys keys_of_table(const Work& work, const RunChoices& choices, const ResultsFolder& folder) {
  if (choices.force) return keys_of(work.plan);
  const Keys keys = with_earlier(folder, work.plan, {resolved_json(work.config), trace_records(work.traces)});
  return choices.plan_only ? keys_of(work.plan) : keys;
}

void tell_start(const Work& work, size_t todo, size_t earlier, Console& console) {
  console.note(fmt::format("{} cells, {} done before, {} jobs, output {}", work.plan.size(), work.plan.size() - todo,
                           work.jobs, work.out.string()));
  if (earlier > 0)
    console.note(fmt::format("{} cells of earlier runs stay in the table (--plan-only leaves them out)", earlier));
}

int run(const RunChoices& choices, Context& context) {
  Console& console = context.console;
  const Work work = prepare(choices, console);
  if (choices.dry_run) return dry_run(work);
  refuse_foreign_table(work.out, choices.force);
  Store store(work.out, work.config.output, choices.force,
              process_record(work.config.run.double_precision ? "double" : "single", work.config.run.device));
  const Keys table = keys_of_table(work, choices, store.folder());
  const std::string record =
      with_earlier_records(record_of(work, context.command_line), store.folder(), keys_of(work.plan));
  const std::vector<Cell> todo = missing_cells(work.plan, store.folder());
  const StopSignals signals;  // before anything is said: who waits for a word may send one
  tell_start(work, todo.size(), table.size() - work.plan.size(), console);
  tell_damaged_lines(store.folder(), console);
  TableTold told(work);
  const auto finish = [&] { store.finish(table, record, [&](const Fields& row) { told.add(row); }); };
  Outcome outcome;
  try {
    outcome = replay(work, todo, choices, store, console);
  } catch (...) {
    finish();  // what other heads gave stands in the table
    throw;
  }
  finish();
  told.tell(console);
  console.note(fmt::format("wrote {}", (work.out / "results.csv").string()));
  if (StopSignals::drain() && outcome.finished < todo.size()) {
    console.note(
        fmt::format("stopped: {} cells are left, run the same command to continue", todo.size() - outcome.finished));
    return StopSignals::exit_code();
  }
  return outcome.failed > 0 ? kSomeFailed : 0;
}

}  // namespace

void add_run(Command& app) {
  Command command = app.command("run", "replay on this machine, all cores; skips cells that are already done");
  const auto choices = std::make_shared<RunChoices>();
  add_run_options(command, *choices);
  command.runs([choices](Context& context) { return run(*choices, context); });
}

}  // namespace kvreplay::app
