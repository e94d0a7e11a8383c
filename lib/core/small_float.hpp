#pragma once
#include <cmath>
#include <cstdint>

#include "core/platform.hpp"

// Floating-point numbers of 4 and 8 bits (OCP 8-bit floating point, OCP Microscaling 1.0), represented as doubles, and
// powers of two.

namespace kvreplay {

// 2^n for n in [-1022, 1023].
KVR_FN inline double power_of_two(int32_t n) {
  const uint64_t bits = uint64_t(uint32_t(n + 1023)) << 52;
#if defined(__CUDA_ARCH__)
  return __longlong_as_double(int64_t(bits));
#else
  return __builtin_bit_cast(double, bits);
#endif
}
// floor(log2 |x|) of a finite x; a subnormal x and 0 count as the least normal number.
KVR_FN inline int32_t exponent_of(double x) {
#if defined(__CUDA_ARCH__)
  const uint64_t bits = uint64_t(__double_as_longlong(x));
#else
  const uint64_t bits = __builtin_bit_cast(uint64_t, x);
#endif
  const auto biased = int32_t(bits >> 52 & 0x7ff);
  return (biased == 0 ? 1 : biased) - 1023;
}

// A format with `mantissa` bits after the point, from the least normal exponent up to `largest`.
struct SmallFloat {
  int32_t mantissa, least_exponent;
  double largest;

  // Rounds to nearest, ties to even, without the limit.
  KVR_FN double rounded(double x) const {
    const int32_t e = exponent_of(x), last = (e > least_exponent ? e : least_exponent) - mantissa;
    return std::rint(x * power_of_two(-last)) * power_of_two(last);
  }
  // Rounds, and replaces numbers beyond the limit by +-largest.
  KVR_FN double operator()(double x) const {
    const double near = rounded(x);
    return near > largest ? largest : near < -largest ? -largest : near;
  }
  // floor(log2 largest).
  KVR_FN int32_t largest_exponent() const { return exponent_of(largest); }
};

// Functions, so that device code can call their members.
KVR_FN constexpr SmallFloat e4m3() { return {3, -6, 448}; }
KVR_FN constexpr SmallFloat e5m2() { return {2, -14, 57344}; }
KVR_FN constexpr SmallFloat e2m1() { return {1, 0, 6}; }

}  // namespace kvreplay
