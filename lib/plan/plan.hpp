#pragma once
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "config/run_config.hpp"

// Turns a configuration's selection into the list of cells.

namespace kvreplay {

constexpr int kEngineSchema = 2;  // raised when the same cell would give other numbers

// Cells of one (trace, prompt, layer, kv head) are adjacent, in the order of the configuration. A randomised instance
// has a cell for each seed, any other one cell without a seed. Duplicates (two fractions that are the same number of
// tokens) are planned once. Throws ConfigError if a file that the configuration names cannot be read.
std::vector<Cell> plan_cells(const LoadedRun& run);
// For a configuration that was not checked against its traces. Throws ConfigError that lists all its problems.
std::vector<Cell> plan_cells(const RunConfig& config, const std::vector<TraceInfo>& traces);

// Whether some cell observes every decode row (RunOptions::every_row).
bool observes_rows(const std::vector<Cell>& plan);

// The budgets of a method share sums, so the last bits of one budget depend on which others are replayed. A resumed run
// therefore replays whole families: all cells of the plan that share with one of `todo`, in the plan's order. Finished
// cells cost little and are not reported again.
std::vector<Cell> with_families(const std::vector<Cell>& todo, const std::vector<Cell>& plan);

}  // namespace kvreplay
