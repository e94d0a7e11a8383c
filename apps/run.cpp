#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <unordered_set>

#include "apps/commands.hpp"
#include "apps/config_options.hpp"
#include "apps/console.hpp"
#include "apps/devices.hpp"
#include "apps/earlier_results.hpp"
#include "apps/engine_options.hpp"
#include "apps/exit_codes.hpp"
#include "apps/meta.hpp"
#include "apps/method_text.hpp"
#include "apps/offered/registry.hpp"
#include "apps/progress.hpp"
#include "apps/remarks.hpp"
#include "apps/replaying.hpp"
#include "apps/run.hpp"
#include "apps/run_options.hpp"
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
  SolvedShares shares;
  std::vector<Cell> plan;
  fs::path out;
  int jobs = 1;
};

Work prepare(const RunChoices& choices, Console& console) {
  LoadedRun loaded = load_run(choices, console);
  require_device(loaded.config);
  Work work;
  work.shares = solve_shares(loaded, console);
  work.plan = planned(choices, loaded);
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

// What a run says of its table.
class TableTold {
 public:
  explicit TableTold(const Work& work) {
    std::vector<std::string> labels;
    for (const MethodInstance& instance : work.config.methods) labels.push_back(instance_text(instance));
    labels_.insert(labels.begin(), labels.end());
    for (const Cell& cell : work.plan) {
      planned_.insert(cell.key);
      summary_.expect(cell.key, labels[cell.variant->instance], cell.budget.tokens, cell.shares);
    }
    for (const NotReached& one : not_reached(work.config, work.shares))
      if (!one.anywhere) summary_.expect_none(one.label, one.share, one.floor);
  }
  void add(const Fields& row) {  // cells of earlier runs are not reported again
    if (!planned_.count(row[column_index("key")])) return;
    summary_.add(row);
    failures_.add(row);
  }
  void tell(const Notes& notes, Console& console) const {
    print(summary_.text(notes));
    failures_.tell(console);
    print_notes(own(notes), console);
  }

 private:
  // Notes that concern no instance of earlier runs.
  Notes own(const Notes& notes) const {
    const auto planned = [&](const Note::Concerned& one) { return labels_.count(one.label()) > 0; };
    Notes chosen;
    for (const Note& note : notes)
      if (std::all_of(note.instances.begin(), note.instances.end(), planned)) chosen.push_back(note);
    return chosen;
  }

  std::unordered_set<std::string> planned_, labels_;  // keys of the plan's cells; labels of its instances
  Summary summary_;
  Failures failures_;
};

std::string record_of(const Work& work, const std::string& command_line) {
  JsonObject record = run_record(resolved_json(work.config), trace_records(work.traces), command_line);
  if (!work.shares.unreachable.empty()) record.add_json("unreachable", unreachable_json(work.config, work.shares));
  return record.add("jobs", work.jobs).text();
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
    console.note(fmt::format("{} cells of earlier runs stay in the table (`kvreplay run --plan-only` leaves them out)",
                             earlier));
}

}  // namespace

int run(const RunChoices& choices, Context& context) {
  Console& console = context.console;
  Work work = prepare(choices, console);
  if (choices.dry_run) return dry_run(work);
  const auto gradients_of = [&](const std::vector<Cell>& cells) {
    return uses_of_gradients(cells, work.traces, open_files(work.config.traces));
  };
  if (choices.predicts && all_use_gradients(gradients_of(work.plan))) work.config.output.projections = true;
  refuse_foreign_table(work.out, choices.force);
  Store store(work.out, work.config.output, choices.force,
              process_record(work.config.run.double_precision ? "double" : "single", work.config.run.device));
  const Keys table = keys_of_table(work, choices, store.folder());
  const std::string record =
      with_earlier_records(record_of(work, context.command_line), store.folder(), keys_of(work.plan));
  const std::vector<Cell> todo = missing_cells(work.plan, store.folder());
  const StopSignals signals;  // before anything is said: who waits for a word may send one
  tell_start(work, todo.size(), table.size() - work.plan.size(), console);
  warn_damaged_lines(store.folder(), console);
  for (const std::string& line : remarks_on(gradients_of(todo))) console.warning(line);
  TableTold told(work);
  const SharesOfCells shares = with_earlier_shares(shares_of(work.plan), store.folder(), table);
  const auto finish = [&] {
    return store.finish(
        table, record, [&](const Fields& row) { told.add(row); }, shares, known_methods());
  };
  Outcome outcome;
  try {
    outcome = replay(work, todo, choices, store, console);
  } catch (...) {
    finish();  // what other heads gave stands in the table
    throw;
  }
  told.tell(finish(), console);
  console.note(fmt::format("wrote {}", (work.out / "results.csv").string()));
  if (StopSignals::drain() && outcome.finished < todo.size()) {
    console.note(
        fmt::format("stopped: {} cells are left, run the same command to continue", todo.size() - outcome.finished));
    return StopSignals::exit_code();
  }
  return outcome.failed > 0 ? kSomeFailed : 0;
}

void add_run(Command& app) {
  Command command = app.command("run", "replay on this machine, all cores; skips cells that are already done");
  const auto choices = std::make_shared<RunChoices>();
  add_run_options(command, *choices);
  command.runs([choices](Context& context) { return run(*choices, context); });
}

}  // namespace kvreplay::app
