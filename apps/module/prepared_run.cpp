#include "apps/module/prepared_run.hpp"

#include <nanobind/stl/string.h>

#include <thread>

#include "apps/engine_options.hpp"
#include "apps/module/argument_wording.hpp"
#include "apps/module/raised.hpp"
#include "apps/remarks.hpp"
#include "base/errors.hpp"
#include "measures/metrics.hpp"
#include "plan/plan.hpp"
#include "results/columns.hpp"
#include "sizing/shares.hpp"
#include "trace/prompt_with_room.hpp"
#include "trace/trace.hpp"

namespace kvreplay::python {

namespace nb = nanobind;

void throw_stopped() { throw ConfigError("the replay was stopped"); }

RunOptions options_of(const Prepared& all, bool every_row) {
  const RunConfig& config = all.loaded.config;
  RunOptions options = app::engine_options(config, every_row, all.open);
  options.jobs = config.run.jobs > 0 ? config.run.jobs : int(std::max(1u, std::thread::hardware_concurrency()));
  return options;
}

namespace {

// Fills `arrays` or `memory`, and `open`, from the input; returns the names of its traces.
std::vector<std::filesystem::path> take_input(const nb::object& input, Prepared& all) {
  std::vector<std::filesystem::path> names;
  if (!nb::isinstance<nb::dict>(input)) {
    for (nb::handle file : nb::cast<nb::list>(input)) names.emplace_back(nb::cast<nb::bytes>(file).c_str());
    all.open = open_files(names);
    return names;
  }
  const auto given = nb::cast<nb::dict>(input);
  if (given.contains("image")) {
    all.memory = described_trace(given);
    all.open = [&all](size_t, const TraceScope& scope) { return std::make_unique<Trace>(all.memory->trace, scope); };
    names.push_back(all.memory->trace.label);
  } else {
    all.arrays = described_arrays(given);
    all.open = [&all](size_t, const TraceScope&) { return std::make_unique<ArrayTensors>(all.arrays->trace); };
    names.push_back(all.arrays->trace.info.path);
  }
  return names;
}

std::unique_ptr<Prepared> prepare(const PlanRequest& request) {
  auto all = std::make_unique<Prepared>();
  all->is_stopped = request.is_stopped;
  const std::vector<std::filesystem::path> traces = take_input(request.input, *all);
  if (request.room.tokens > 0)
    all->open = [open = std::move(all->open), room = request.room](size_t trace, const TraceScope& scope) {
      return with_room(open(trace, scope), room.prompt, room.tokens);
    };
  all->methods.emplace(request.methods, all->stop);
  all->loaded = interruptible(*all, [&] {
    return load_over(request.config, all->methods->registry, metric_names(), traces, all->open, argument_wording());
  });
  return all;
}

// Solves budgets that are shares of the cache.
void solve_budgets(Prepared& all, bool has_room) {
  const BudgetList& budget = all.loaded.config.budget;
  if (!budget.has_shares()) return;
  if (has_room && budget.of != BudgetList::Of::prompt)
    throw ConfigError(
        "budget: a share of the bytes at the peak or over the steps needs all rows: give tokens, or a "
        "share of the prompt's bytes");
  RunOptions options = options_of(all, false);
  options.stop = [&all] { return all.stop.load(); };
  const SolvedShares solved = interruptible(all, [&] { return solve_shares(all.loaded, options); });
  all.unreachable = app::unreachable_json(all.loaded.config, solved);
  for (std::string& line : app::remarks_on(all.loaded.config, solved))
    all.loaded.config.warnings.push_back(std::move(line));
}

void plan(Prepared& all) {
  all.cells = interruptible(all, [&] { return plan_cells(all.loaded); });
  const auto uses = interruptible(all, [&] { return app::uses_of_gradients(all.cells, all.loaded.traces, all.open); });
  for (std::string& line : app::remarks_on(uses)) all.loaded.config.warnings.push_back(std::move(line));
}

}  // namespace

std::unique_ptr<Prepared> planned(const PlanRequest& request) {
  std::unique_ptr<Prepared> all = prepare(request);
  solve_budgets(*all, request.room.tokens > 0);
  plan(*all);
  return all;
}

nb::list warnings_of(const RunConfig& config) {
  nb::list lines;
  for (const std::string& line : config.warnings) lines.append(text_of(line));
  return lines;
}

}  // namespace kvreplay::python
