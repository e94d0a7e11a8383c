#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "measures/metrics.hpp"

namespace kvreplay {

// What replaying one cell gives.
struct CellResult {
  Measured measures;
  int64_t n_queries = 0;  // decode rows that were scored
  bool ok = true;
  std::string error;  // why not
  bool lost = false;  // its head could not be read, or had no share of a budget
  // Only what the run was asked to save; [heads, rows(, v_dim)], row-major.
  std::vector<int32_t> rows;  // token index of each scored row
  int32_t heads = 0, v_dim = 0, samples = 0, drawn = 0;
  bool double_precision = false, oneshot = false;
  bool by_cores = true;  // false: a device computed the rows
  std::vector<double> rel_err, partition_err, out;
  std::vector<float> projections;  // [heads, rows, samples], see RowResults; those of drawn labels come first
  std::vector<float> distances;    // [heads, rows]: cosine distances, beside projections
  TokenLists kept, attended;
  std::vector<double> num, den;  // of the kept lists, empty when all are 1
  // A step attends to what stands after it, rather than to what stood before and its token; lists and weights do
  // not say all of what it attends to.
  bool attends = false, partial = false;
};

}  // namespace kvreplay
