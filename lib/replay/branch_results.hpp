#pragma once
#include <cstdint>
#include <vector>

#include "measures/accumulator.hpp"

namespace kvreplay {

// Sizes and lists of a cell after one branch.
struct BranchResult {
  CellResult result;   // its lists are in `branches`
  int64_t points = 0;  // steps over which its means were taken, and the end of the prompt
  int64_t rows = 0;    // pairs of query head and scored row, for the mean over these
};

BranchResult branch_result(int32_t branch, CellResult result, int64_t points, int64_t rows);

// The sizes of a cell over all branches, which are served one at a time: the largest, and means over all their steps.
// The ages of tokens that several branches evicted have no common median.
CellResult joined(std::vector<BranchResult> branches);

}  // namespace kvreplay
