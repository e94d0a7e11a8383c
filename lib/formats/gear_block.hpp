#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "formats/coders/kivi.hpp"

namespace kvreplay {

// What GEAR stores for a block [rows, width] besides its codes.
struct Correction {
  int32_t rank = 0;
  int32_t outliers = 0;  // numbers stored exactly
};

// Codes a block as GEAR's release does (GEARLM/Simulated, gears_channelQ and gears_tokenQ).
//  1. In each line (keys: a channel, values: a row) of n numbers, the floor(outliers n / 200) smallest and as many of
//     the largest are outliers (ties: the earlier). The mean of the line replaces them.
//  2. code() replaces the block by its decoded numbers (KIVI); outliers return exactly.
//  3. A rank-`rank` approximation of the remaining error (2 power iterations from the first unit vectors) is added,
//     also at the outliers.
// `order: residual` chooses the outliers last: of the block's numbers, the `outliers` per cent with the largest error
// after codes and low rank are restored exactly (count rounded down; ties: the earlier).
Correction code_gear(const Gear& gear, RowPart part, int32_t width, std::vector<double>& block,
                     const std::function<void(std::vector<double>&)>& code);

// Adds step 3's approximation of exact - coded to `coded`, then restores the `percent` per cent of numbers with the
// largest error.
Correction correct(const std::vector<double>& exact, int32_t width, int32_t rank, double percent,
                   std::vector<double>& coded);

}  // namespace kvreplay
