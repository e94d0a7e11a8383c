#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "devices.hpp"
#include "engine_options.hpp"
#include "meta.hpp"
#include "options.hpp"
#include "plan/plan.hpp"
#include "progress.hpp"
#include "run_options.hpp"
#include "signals.hpp"
#include "summary.hpp"

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
  SaveOptions save() const { return {config.output.curves, config.output.kept, config.output.outputs}; }
};

Work prepare(const RunChoices& choices, Console& console) {
  LoadedRun loaded = load_run(config_file(choices), overrides_of(choices), registry(), measure_names());
  Work work{std::move(loaded.config), std::move(loaded.traces), {}, {}, 1};
  for (const std::string& warning : work.config.warnings) console.warning(warning);
  require_device(work.config);
  work.plan = plan_cells(work.config, work.traces);
  work.out = work.config.output.dir.empty() ? fs::path("out") / work.config.name : work.config.output.dir;
  work.jobs = work.config.run.jobs > 0 ? work.config.run.jobs : default_jobs();
  return work;
}

std::vector<Cell> missing_cells(const std::vector<Cell>& plan, const Store& store) {
  std::vector<Cell> todo;
  for (const Cell& cell : plan)
    if (store.done().count(cell.key) == 0) todo.push_back(cell);
  return todo;
}

// Cells that the plan does not know would drop out of results.csv without a word.
void refuse_other_plan(const Work& work, const Store& store) {
  const size_t foreign = store.foreign(work.plan);
  if (foreign == 0) return;
  throw ConfigError(
      fmt::format("{}: error: holds {} cells of another plan (another configuration, trace or precision). "
                  "Choose another directory with -o, or forget them with --force",
                  work.out.string(), foreign));
}

int dry_run(const Work& work) {
  // Operations that one core with AVX2 does in a second, roughly.
  constexpr double kRate = 5e10;
  std::vector<Cell> todo = work.plan;
  if (std::error_code ignored; fs::is_directory(work.out / "shards", ignored))
    todo = missing_cells(work.plan, Store(work.out, work.save(), false));
  double cost = 0;
  for (const double c : estimate(work.config, todo, work.traces).cost) cost += c;
  const double bytes = double(estimate(work.config, work.plan, work.traces).bytes_peak);
  print(fmt::format(
      "cells   {} ({} done, {} to replay)\nmemory  about {:.0f} MiB\ntime    about {} with {} jobs\noutput  "
      "{}\n",
      work.plan.size(), work.plan.size() - todo.size(), todo.size(), std::max(1.0, bytes / (1 << 20)),
      duration_text(cost / kRate / work.jobs), work.jobs, work.out.string()));
  return 0;
}

struct Outcome {
  size_t finished = 0, failed = 0;
};

Outcome replay(const Work& work, const std::vector<Cell>& todo, const RunChoices& choices, Store& store,
               Console& console) {
  const PlanEstimate estimated = estimate(work.config, todo, work.traces);
  Progress progress(console, Progress::mode_of(choices.progress, console.verbosity < 0),
                    work.plan.size() - todo.size(), todo, estimated.cost);
  std::atomic<bool> give_up{false};
  RunOptions options = engine_options(work.config, work.plan);
  options.save = work.save();
  options.jobs = work.jobs;
  std::set<std::string> missing;
  for (const Cell& cell : todo) missing.insert(cell.key);
  options.on_start = [&](const Cell& cell) { progress.started(cell); };
  options.on_cell = [&](const Cell& cell, const CellResult& result) {
    if (missing.count(cell.key) == 0) return;
    const bool ok = store.publish(cell, result);
    progress.finished(cell, ok);
    if (!ok) console.detail(fmt::format("failed: {}: {}", cell_text(cell), result.error));
    if (!ok && choices.fail_fast) give_up = true;
  };
  options.on_head = [&] { store.sync(); };
  options.stop = [&] { return give_up || StopSignals::stop(); };
  run_cells(with_families(todo, work.plan), options);
  progress.end();
  return {progress.finished_now(), progress.failed()};
}

// What went wrong, by frequency: the reason of the first failed cells is in the table's error column.
void tell_failures(const ResultTable& rows, Console& console) {
  constexpr size_t kTold = 5;
  std::map<std::string, size_t> reasons;
  for (const auto& row : rows)
    if (row[column_index("status")] != "ok")
      ++reasons[row[column_index("method")] + ": " + row[column_index("error")]];
  size_t told = 0;
  for (const auto& [reason, count] : reasons)
    if (told++ < kTold) console.error(fmt::format("{} cells failed: {}", count, reason));
  if (reasons.size() > kTold)
    console.error(fmt::format("and {} other reasons, see the column `error`", reasons.size() - kTold));
}

// A method that never evicted, or a format that never rewrote a row, has not been tested by this run.
void tell_idle(const Work& work, const ResultTable& rows, Console& console) {
  std::map<std::string, const Cell*> cells;
  for (const Cell& cell : work.plan) cells[cell.key] = &cell;
  std::map<std::string, size_t> idle;
  for (const auto& row : rows) {
    const Cell& cell = *cells.at(row[column_index("key")]);
    if (row[column_index("status")] != "ok") continue;
    const std::string name = instance_text(work.config.methods[cell.instance]);
    const bool should_evict =
        cell.budget && *cell.budget < cell.n_tokens && !cell.method->info.reads_full_cache;
    if (should_evict && row[column_index("n_evictions")] == "0") ++idle[name + " evicted nothing"];
    if (cell.axes.row_format.quantises() && row[column_index("n_quantised")] == "0")
      ++idle[name + " quantised nothing (kivi and gear need caches larger than R)"];
  }
  for (const auto& [what, count] : idle) console.warning(fmt::format("{} in {} cells", what, count));
}

int run(const RunChoices& choices, Context& context) {
  Console& console = context.console;
  const Work work = prepare(choices, console);
  if (choices.dry_run) return dry_run(work);
  Store store(work.out, work.save(), choices.force, cell_record(work.config));
  if (!choices.force) refuse_other_plan(work, store);
  const std::vector<Cell> todo = missing_cells(work.plan, store);
  console.note(fmt::format("{} cells, {} done before, {} jobs, output {}", work.plan.size(),
                           work.plan.size() - todo.size(), work.jobs, work.out.string()));
  if (store.unreadable_lines() > 0)
    console.warning(fmt::format("{}: {} damaged lines in shards/ are left out; their cells are replayed",
                                work.out.string(), store.unreadable_lines()));
  ::signal(SIGPIPE, SIG_IGN);  // a closed terminal or pipe must not lose a run
  const StopSignals signals;
  const auto finish = [&] {
    store.finish(work.plan, run_record(work.config, work.traces, work.jobs, context.command_line));
  };
  Outcome outcome;
  try {
    outcome = replay(work, todo, choices, store, console);
  } catch (...) {
    finish();  // what other heads gave stands in the table
    throw;
  }
  finish();
  const ResultTable rows = store.table(work.plan);
  print(summary_table(work.config, work.plan, rows));
  tell_failures(rows, console);
  tell_idle(work, rows, console);
  console.note(fmt::format("wrote {}", (work.out / "results.csv").string()));
  if (StopSignals::stop() && outcome.finished < todo.size()) {
    console.note(fmt::format("stopped: {} cells are left, run the same command to continue",
                             todo.size() - outcome.finished));
    return StopSignals::exit_code();
  }
  return outcome.failed > 0 ? 1 : 0;
}

}  // namespace

void add_run(CLI::App& app, std::vector<Command>& commands) {
  CLI::App* command =
      app.add_subcommand("run", "replay on this machine, all cores; skips cells that are already done");
  const auto choices = std::make_shared<RunChoices>();
  add_run_options(*command, *choices);
  commands.push_back({command, [choices](Context& context) { return run(*choices, context); }});
}

}  // namespace kvreplay::app
