#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <set>

#include "apps/commands.hpp"
#include "apps/config_options.hpp"
#include "apps/devices.hpp"
#include "apps/engine_options.hpp"
#include "apps/offered/registry.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "measures/metrics.hpp"
#include "plan/plan.hpp"
#include "replay/runner.hpp"
#include "results/output_files.hpp"
#include "trace/trace.hpp"

// `kvreplay budgets CONFIG --out FILE`: writes an allocator's budget for each head, for `allocator: file:FILE`.

namespace kvreplay::app {
namespace {

struct BudgetsChoices {
  ConfigOptions config;
  std::string out;
  int jobs = 0;
};

// One file holds the budgets of one method at one budget on one prompt.
void expect_one_file(const std::vector<Cell>& cells) {
  std::set<size_t> methods;
  std::set<int32_t> budgets;
  std::set<std::pair<size_t, std::string>> prompts;
  std::set<uint32_t> seeds;
  for (const Cell& cell : cells) {
    methods.insert(cell.variant->instance), budgets.insert(cell.budget.tokens);
    prompts.emplace(cell.place.trace, cell.place.prompt), seeds.insert(cell.seed.value_or(0));
  }
  if (std::max({methods.size(), budgets.size(), prompts.size(), seeds.size()}) == 1) return;
  throw ConfigError(fmt::format(
      "a file holds the budgets of one method at one budget on one prompt, and the configuration asks for {} "
      "methods, {} budgets, {} prompts, {} seeds: name one of each, as in -s 'methods=[{{name: snapkv, "
      "allocator: lu_kv}}]' -s 'budget.tokens=[{}]' -s 'select.prompts=[{}]' -s seeds=1",
      methods.size(), budgets.size(), prompts.size(), seeds.size(), *budgets.begin(), prompts.begin()->second));
}

void expect_shared(const Cell& cell) {
  if (shared_over(cell) == SharedOver::none)
    throw ConfigError(
        fmt::format("{} gives every head the same budget, so there is nothing to write: add an allocator, "
                    "as in {{name: {}, allocator: ada}}",
                    cell.method().info.name, cell.method().info.name));
  if (cell.options().allocator == Allocator::duo)
    throw ConfigError(
        "allocator duo lets some heads stream, which a file cannot say, as all heads that it gives a budget "
        "are cut by one method: replay {name: duo} in place");
  if (cell.budget.none())
    throw ConfigError(fmt::format("{} takes no budget that a file could share", cell.method().info.name));
}

std::string csv_of(std::vector<Cell> cells) {
  std::sort(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) { return a.place < b.place; });
  std::string text = "layer,kv_head,tokens\n";
  for (const Cell& cell : cells)
    text +=
        fmt::format("{},{},{}\n", cell.place.layer, cell.place.kv_head, cell.budget.share.value_or(cell.budget.tokens));
  return text;
}

int budgets(const BudgetsChoices& choices, Console& console) {
  const LoadedRun loaded = load_run(choices.config.file, choices.config.sets, known_methods(), metric_names());
  for (const std::string& warning : loaded.config.warnings) console.warning(warning);
  if (loaded.config.budget.has_shares())
    throw ConfigError(
        "budgets that are shares of the cache are found by replaying: name tokens, as in budget: "
        "{tokens: [128]}");
  std::vector<Cell> cells = plan_cells(loaded);
  if (cells.empty()) throw ConfigError("the configuration selects no head");
  expect_one_file(cells);
  expect_shared(cells.front());
  RunOptions options = engine_options(loaded.config, false, open_files(loaded.config.traces));
  options.jobs = choices.jobs > 0 ? choices.jobs : loaded.config.run.jobs > 0 ? loaded.config.run.jobs : default_jobs();
  publish_text(choices.out, csv_of(with_budgets(std::move(cells), options)));
  console.note("wrote " + choices.out);
  return 0;
}

}  // namespace

void add_budgets(Command& app) {
  const auto choices = std::make_shared<BudgetsChoices>();
  Command command = app.command(
      "budgets", "write an allocator's budget for each head as a file for `allocator: file:FILE`; replays nothing");
  add_config_options(command, choices->config, "a configuration (YAML) of one method, budget and prompt");
  command.option("-o,--out", choices->out, "the CSV to write: layer,kv_head,tokens").required().type("FILE");
  command.option("-j,--jobs", choices->jobs, "threads; the numbers do not depend on it (default: all cores)").type("N");
  command.footer(
      "example:\n  kvreplay budgets configs/quickstart.yaml -s 'methods=[{name: snapkv, allocator: ada}]' "
      "-s 'budget.tokens=[128]' -o b.csv\n");
  command.runs([choices](Context& context) { return budgets(*choices, context.console); });
}

}  // namespace kvreplay::app
