#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "results/folder.hpp"

// An output directory may hold more than a plan asks for: cells of earlier runs. They stay in its table where one
// table may hold both.

namespace kvreplay::app {

// What a run asks of its cells, as its record says it.
struct Asked {
  std::string config;  // resolved: JSON
  std::string traces;  // as trace_records() says them: JSON
};

// The plan's keys, and behind them those of earlier cells. Throws ConfigError where these answer another question
// (another trace, prompt, precision or list of metrics), or are the plan's own by name and not by content: one table
// would average over both.
Keys with_earlier(const ResultsFolder& folder, const std::vector<Cell>& plan, const Asked& asked);

// Throws ConfigError where a directory holds a results.csv that is not the table of its shards: somebody's own, or a
// copy without what it was made from. `force`: only a file that is no table of ours.
void refuse_foreign_table(const std::filesystem::path& out, bool force);

// The shares of the cache for which cells of a table were asked: the plan's own, and beside them those that the table
// of earlier runs says of its cells.
SharesOfCells with_earlier_shares(SharesOfCells own, const ResultsFolder& folder, const Keys& table);

// `record` of a run, and where the folder holds more than the cells of its plan, the records of those that gave them.
std::string with_earlier_records(const std::string& record, const ResultsFolder& folder, const Keys& plan);

}  // namespace kvreplay::app
