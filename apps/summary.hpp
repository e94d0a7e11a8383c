#pragma once
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "config/run_config.hpp"
#include "results/store.hpp"

namespace kvreplay::app {

// "snapkv window=16 phase=stream": the name and what differs from the defaults.
std::string instance_text(const MethodInstance& instance);

// The table that `run` prints: one row per (method instance, budget), means over its cells.
std::string summary_table(const RunConfig& config, const std::vector<Cell>& plan, const ResultTable& rows);

size_t column_index(const std::string& name);  // in columns()

// Columns padded with spaces; the first is left-aligned, the others right-aligned.
std::string aligned(const std::vector<std::vector<std::string>>& rows);
std::string left_aligned(const std::vector<std::vector<std::string>>& rows);

}  // namespace kvreplay::app
