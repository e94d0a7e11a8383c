#pragma once
#include <cmath>
#include <cstdint>
#include <span>

#include "core/bf16.hpp"
#include "core/platform.hpp"

// Floating-point numbers of 4 and 8 bits (OCP 8-bit floating point, OCP Microscaling 1.0), represented as doubles, and
// powers of two.

namespace kvreplay {

// 2^n for n in [-1022, 1023].
inline double power_of_two(int32_t n) {
  const uint64_t bits = uint64_t(uint32_t(n + 1023)) << 52;
#if defined(__CUDA_ARCH__)
  return __longlong_as_double(int64_t(bits));
#else
  return __builtin_bit_cast(double, bits);
#endif
}
// floor(log2 |x|) of a finite x; a subnormal x and 0 count as the least normal number.
inline int32_t exponent_of(double x) {
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
  double rounded(double x) const {
    const int32_t e = exponent_of(x), last = (e > least_exponent ? e : least_exponent) - mantissa;
    return std::rint(x * power_of_two(-last)) * power_of_two(last);
  }
  // Rounds, and replaces numbers beyond the limit by +-largest.
  double operator()(double x) const {
    const double near = rounded(x);
    return near > largest ? largest : near < -largest ? -largest : near;
  }
  // floor(log2 largest).
  int32_t largest_exponent() const { return exponent_of(largest); }
};

// Functions, so that device code can call their members.
constexpr SmallFloat e4m3() { return {3, -6, 448}; }
constexpr SmallFloat e5m2() { return {2, -14, 57344}; }
constexpr SmallFloat e2m1() { return {1, 0, 6}; }

// Rounding to fewer bits (methods.md, "row formats"): 16-bit floating point, and groups of numbers that share an offset
// and a step. The functions return numbers as they are read back from storage.

// Rounds to the nearest number of `digits` significant bits that is a multiple of 2^lowest; ties to even.
inline double round_to_digits(double x, int32_t digits, int32_t lowest) {
  const int32_t last_digit = exponent_of(x) + 1 - digits, last = last_digit > lowest ? last_digit : lowest;
  return std::rint(x * power_of_two(-last)) * power_of_two(last);
}
inline double to_float16(double x) {
  const double rounded = round_to_digits(x, 11, -24);
  return std::fabs(rounded) > 65504 ? std::copysign(double(INFINITY), x) : rounded;
}
inline double to_float32(double x) { return double(float(x)); }
// Through float32, as the recorder does.
inline double to_bfloat16(double x) { return double(from_bf16(to_bf16(float(x)))); }

// Codes 0..levels over the range of one group. Codes are computed from the exact extremes and read back with the offset
// and the step stored in float16.
struct GroupScale {
  double low = 0, high = 0;
  int32_t levels = 1;

  double offset() const { return to_float16(low); }
  double step() const { return to_float16((high - low) / levels); }
  bool fits() const { return std::isfinite(offset()) && std::isfinite(step()); }
  int32_t code(double x) const {
    if (high == low) return 0;
    const double position = (x - low) * levels / (high - low);
    return int32_t(std::rint(position < 0 ? 0 : position > levels ? levels : position));
  }
};
constexpr int32_t levels_of(int32_t bits) { return (1 << bits) - 1; }

// Quantises a group of n numbers: calls store(i, x) with number(i) as it is read back. False: offset or step exceed
// float16.
template <class F, class S>
bool quantise_group(int32_t n, int32_t levels, F number, S store) {
  GroupScale scale{double(number(0)), double(number(0)), levels};
  for (int32_t i = 1; i < n; ++i) {
    const double x = double(number(i));
    if (x < scale.low) scale.low = x;
    if (x > scale.high) scale.high = x;
  }
  const double offset = scale.offset(), step = scale.step();
  for (int32_t i = 0; i < n; ++i) store(i, scale.code(double(number(i))) * step + offset);
  return scale.fits();
}

// Quantises a row in place, in groups of `group` neighbours; the last group may be shorter.
template <class Real>
bool quantise_row(std::span<Real> row, int32_t group, int32_t levels) {
  bool fits = true;
  for (int32_t first = 0; first < int32_t(row.size()); first += group) {
    const int32_t left = int32_t(row.size()) - first;
    Real* numbers = row.data() + first;
    const bool ok = quantise_group(
        left < group ? left : group, levels, [&](int32_t i) { return numbers[i]; },
        [&](int32_t i, double x) { numbers[i] = Real(x); });
    fits = fits && ok;
  }
  return fits;
}

}  // namespace kvreplay
