#pragma once
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "config/run_config.hpp"

// From a checked configuration to the list of cells.

namespace kvreplay {

constexpr int kEngineSchema = 1;  // raised when the same cell would give other numbers, beyond rounding

// Cells of one (trace, prompt, layer, kv head) stand together, in the order of the configuration.
// Budgets are resolved to tokens (convention C10), parameters to integers; deterministic instances
// have one cell (no seed), methods without a budget one per seed. A cell that would come twice (two
// fractions that are the same number of tokens) comes once. Expects a configuration that passed
// check_against_traces, which marks what is wrong where it stands; throws ConfigError otherwise.
std::vector<Cell> plan_cells(const RunConfig& config, const std::vector<TraceInfo>& traces);

// Does some cell observe every decode row (RunOptions::every_row)?
bool observes_rows(const std::vector<Cell>& plan);

// The budgets of a method share their sums, so that the last bits of one depend on which others there are. A
// run that is resumed therefore replays whole families: all cells of the plan that share with one of `todo`,
// in the plan's order. Those that are finished already cost little and are not reported again.
std::vector<Cell> with_families(const std::vector<Cell>& todo, const std::vector<Cell>& plan);

// Rough bytes in memory and relative cost of a plan, for --dry-run and the ETA. cost[i] belongs to cell i.
struct PlanEstimate {
  int64_t bytes_peak = 0;
  std::vector<double> cost;
};
// Of a cost, on one core with AVX2; roughly.
double core_seconds(double cost);
PlanEstimate estimate(const RunConfig& config, const std::vector<Cell>& plan,
                      const std::vector<TraceInfo>& traces);

}  // namespace kvreplay
