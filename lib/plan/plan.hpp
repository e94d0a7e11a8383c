#pragma once
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "config/run_config.hpp"

// From what a configuration selects to the list of cells.

namespace kvreplay {

constexpr int kEngineSchema = 2;  // raised when the same cell would give other numbers

// Cells of one (trace, prompt, layer, kv head) stand together, in the order of the configuration. Randomised
// instances have a cell for each seed, others one (no seed). A cell that would come twice (two fractions that are
// the same number of tokens) comes once. Throws ConfigError where a file that it names cannot be read.
std::vector<Cell> plan_cells(const LoadedRun& run);
// Throws ConfigError with all that is wrong with a configuration that was not checked against its traces.
std::vector<Cell> plan_cells(const RunConfig& config, const std::vector<TraceInfo>& traces);

// Does some cell observe every decode row (RunOptions::every_row)?
bool observes_rows(const std::vector<Cell>& plan);

// The budgets of a method share their sums, so that the last bits of one depend on which others there are. A
// run that is resumed therefore replays whole families: all cells of the plan that share with one of `todo`,
// in the plan's order. Those that are finished already cost little and are not reported again.
std::vector<Cell> with_families(const std::vector<Cell>& todo, const std::vector<Cell>& plan);

}  // namespace kvreplay
