#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "formats/coders/kivi.hpp"

namespace kvreplay {

// What GEAR keeps of a block [rows, width] beside its codes.
struct Correction {
  int32_t rank = 0;
  int32_t outliers = 0;  // numbers that are kept beside the codes
};

// A block that is coded as GEAR's release does (GEARLM/Simulated, gears_channelQ and gears_tokenQ).
//  1. Of each line (keys: a channel, values: a row) of n numbers the floor(outliers n / 200) smallest and as many of
//     the largest are outliers (ties: the earlier); the mean of the line takes their place.
//  2. code() replaces the block by what is read back of its codes (KIVI); outliers return exactly.
//  3. A rank-`rank` approximation of what is missed (2 power iterations from the first unit vectors) is added, also
//     where outliers stand.
// `order: residual` takes the outliers last: the percentage of the block's numbers that codes and low rank miss most
// (rounded down; ties: the earlier) is put back.
Correction code_gear(const Gear& gear, RowPart part, int32_t width, std::vector<double>& block,
                     const std::function<void(std::vector<double>&)>& code);

// Brings `coded` closer to `exact` as step 3 does, then puts back the `percent` per cent that are still furthest off.
Correction correct(const std::vector<double>& exact, int32_t width, int32_t rank, double percent,
                   std::vector<double>& coded);

}  // namespace kvreplay
