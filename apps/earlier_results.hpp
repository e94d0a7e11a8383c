#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "results/folder.hpp"

// An output directory may hold more cells than a plan: those of earlier runs. They stay in its table if one table may
// hold both.

namespace kvreplay::app {

// The settings of a run that its cells must share, as recorded.
struct Asked {
  std::string config;  // resolved: JSON
  std::string traces;  // as from trace_records(): JSON
};

// The plan's keys, followed by those of earlier cells. Throws ConfigError if the earlier cells belong to another
// experiment (another trace, prompt, precision or list of metrics), or if they have names of the plan's cells with
// other content: one table would average over both.
Keys with_earlier(const ResultsFolder& folder, const std::vector<Cell>& plan, const Asked& asked);

// Throws ConfigError if a directory holds a results.csv that is not the table of its shards: a table of the user, or a
// copy without its shards. With `force`, throws only for a file that this program did not write.
void refuse_foreign_table(const std::filesystem::path& out, bool force);

// The shares of the cache that the cells of a table were asked for: the plan's, joined with those in the table of
// earlier runs.
SharesOfCells with_earlier_shares(SharesOfCells own, const ResultsFolder& folder, const Keys& table);

// `record` of a run. If the folder holds cells outside its plan, the records of their runs are added.
std::string with_earlier_records(const std::string& record, const ResultsFolder& folder, const Keys& plan);

}  // namespace kvreplay::app
