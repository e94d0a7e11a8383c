#pragma once
#include <cmath>

namespace kvreplay::theory {

// The x that a standard normal number exceeds with probability `above`, 0 < above < 1. By bisection, to the last
// digits.
inline double normal_quantile_above(double above) {
  double low = -40, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = low + (high - low) / 2;
    if (std::erfc(middle / std::sqrt(2.0)) / 2 > above) low = middle;
    else high = middle;
  }
  return low + (high - low) / 2;
}

}  // namespace kvreplay::theory
