#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "measures/metrics.hpp"

namespace kvreplay {

// Result of replaying one cell.
struct CellResult {
  Measured measures;
  int64_t n_queries = 0;  // scored decode rows
  bool ok = true;
  std::string error;  // reason of a failure
  bool lost = false;  // its head could not be read, or it got no share of a budget
  // Filled only if the run was asked to save it; [heads, rows(, v_dim)], row-major.
  std::vector<int32_t> rows;  // token index of each scored row
  int32_t heads = 0, v_dim = 0, samples = 0, drawn = 0;
  bool double_precision = false, oneshot = false;
  bool on_cpu = true;  // false: a device computed the rows
  std::vector<double> rel_err, partition_err, out;
  std::vector<float> projections;  // [heads, rows, samples], see RowResults; projections for drawn labels come first
  std::vector<float> distances;    // [heads, rows]: cosine distances, saved with projections
  TokenLists kept, attended;
  std::vector<double> num, den;  // weights of the kept lists; empty if all are 1
  // attends: a step attends to the list after it; otherwise to the list before it and its own token. partial: lists and
  // weights do not describe completely what a step attends to.
  bool attends = false, partial = false;
};

}  // namespace kvreplay
