#pragma once
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "catalog/cell.hpp"

// Selects part of a plan by a table: `--only FILE.csv`.

namespace kvreplay {

// Rows of a CSV file whose header names some of: trace_id, prompt, layer, kv_head, method, given, budget_tokens, seed.
// A cell passes if it equals some row in all of that row's non-empty fields. Fields are written as in results.csv.
class CellFilter {
 public:
  // Throws ConfigError that names the line.
  explicit CellFilter(const std::filesystem::path& file);

  // The cells of a plan that pass, in the plan's order. Throws ConfigError that names the line of a row without a cell.
  std::vector<Cell> of(std::vector<Cell> plan) const;

 private:
  struct Pattern {  // columns that are filled in, and the line of each combination of values
    std::vector<size_t> columns;
    std::unordered_map<std::string, int64_t> lines;
  };
  std::vector<int64_t> lines_naming(const Cell& cell) const;

  std::filesystem::path file_;
  std::vector<Pattern> patterns_;
};

}  // namespace kvreplay
