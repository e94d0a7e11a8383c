#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/platform.hpp"

namespace kvreplay {

// x[l] = exp(x[l]) in double, within 2 units in the last place: 2^n exp(r), |r| <= ln(2)/2, exp(r) by its Taylor
// series. The loop is plain arithmetic, so that the compiler computes neighbours together.
template <int32_t n>
KVR_FN void exponentiate(double (&x)[n]) {
  constexpr double kLog2E = 1.4426950408889634, kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr double kShift = 0x1.8p52;  // the last bits of x + kShift hold the integer nearest to x
  constexpr double kLeast = -708, kMost = 709;
  constexpr double kInverse[] = {
      1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,       1.0 / 720,
      1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
  double outside = 0;
  KVR_SIMD_SUM(outside)
  for (int32_t l = 0; l < n; ++l) outside += x[l] >= kLeast && x[l] <= kMost ? 0.0 : 1.0;
  if (outside > 0) {  // infinite, tiny or NaN
    for (int32_t l = 0; l < n; ++l) x[l] = std::exp(x[l]);
    return;
  }
  constexpr int32_t kAtOnce = n % 16 == 0 ? 16 : n;  // series computed side by side, because each term waits for the
                                                     // one before
  for (int32_t first = 0; first < n; first += kAtOnce) {
    double shifted[kAtOnce], r[kAtOnce], s[kAtOnce];
    KVR_SIMD for (int32_t l = 0; l < kAtOnce; ++l) {
      shifted[l] = x[first + l] * kLog2E + kShift;
      const double whole = shifted[l] - kShift;
      r[l] = (x[first + l] - whole * kLn2High) - whole * kLn2Low;
      s[l] = kInverse[13];
    }
    for (int32_t k = 12; k >= 0; --k) KVR_SIMD for (int32_t l = 0; l < kAtOnce; ++l) s[l] = s[l] * r[l] + kInverse[k];
    KVR_SIMD for (int32_t l = 0; l < kAtOnce; ++l) x[first + l] =
        s[l] * std::bit_cast<double>((std::bit_cast<uint64_t>(shifted[l]) << 52) + (uint64_t{1023} << 52));
  }
}

}  // namespace kvreplay
