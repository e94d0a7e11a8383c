#pragma once
#include <filesystem>
#include <string>
#include <unordered_set>
#include <vector>

#include "catalog/cell.hpp"

// A part of a plan, named by a table: `--only FILE.csv`.

namespace kvreplay {

// Rows of a CSV file whose header names some of: trace_id, prompt, layer, kv_head, method, given,
// budget_tokens, seed. A cell passes if it equals some row in all of the row's fields that are not empty;
// fields are written as in results.csv.
class CellFilter {
 public:
  // Throws ConfigError with the line.
  explicit CellFilter(const std::filesystem::path& file);

  bool passes(const Cell& cell) const;
  // The cells of a plan that pass, in its order. Throws ConfigError if there are none.
  std::vector<Cell> of(std::vector<Cell> plan) const;

 private:
  struct Pattern {  // which columns are given, and their values
    std::vector<size_t> columns;
    std::unordered_set<std::string> rows;
  };
  std::filesystem::path file_;
  std::vector<Pattern> patterns_;
};

}  // namespace kvreplay
