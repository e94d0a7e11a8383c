#pragma once
#include <cmath>

#include "core/policy.hpp"

namespace kvreplay {

// What the query heads of a group read in a step: chosen[head * rows + row], the same for every head.
struct GroupReads {
  uint8_t* chosen;
  int32_t heads, rows;

  void put(int32_t row, uint8_t how) const {
    for (int32_t h = 0; h < heads; ++h) chosen[int64_t(h) * rows + row] = how;
  }
  // Rows first .. first + count - 1.
  void put_run(const Team auto& team, int32_t first, int32_t count, uint8_t how) const {
    team.each(count, [&](int32_t i) { put(first + i, how); });
  }
};

// exp(x) for a row's weight, which must be finite: a row whose own exponential is 0 counts 0 whatever its weight.
inline double finite_exp(double x) {
  constexpr double kLargest = 600;
  return std::exp(x < kLargest ? x : kLargest);
}

}  // namespace kvreplay
