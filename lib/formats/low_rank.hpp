#pragma once
#include <cstdint>
#include <vector>

namespace kvreplay {

// What GEAR keeps of a block [rows, width] beside its codes.
struct Correction {
  int32_t rank = 0;
  int32_t outliers = 0;  // residuals that are kept exactly
};

// Brings `coded` closer to `exact`: adds a rank-`rank` approximation of the residual (2 power iterations from
// the first unit vectors), then puts back the `percent` per cent of the entries that are still furthest off
// (rounded down; ties: the earlier one).
Correction correct(const std::vector<double>& exact, int32_t width, int32_t rank, double percent,
                   std::vector<double>& coded);

}  // namespace kvreplay
