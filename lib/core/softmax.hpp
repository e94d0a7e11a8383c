#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "core/platform.hpp"
#include "core/team.hpp"

// Sums of exponentials over the rows of a cache: the only place that defines the range in which they can be trusted,
// what is done outside that range, and what a sink logit adds.

namespace kvreplay {

// x[l] = exp(x[l]) in double, within 2 units in the last place: 2^n exp(r), |r| <= ln(2)/2, exp(r) by its Taylor
// series. The loop is plain arithmetic, so that the compiler computes neighbours together.
template <int32_t n>
void exponentiate(double (&x)[n]) {
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

// The denominator of a step in the log domain, comparable with the exact one.
struct Normaliser {
  double sum, shift;  // tau = sum * exp(shift); sum <= 0: there was nothing to attend to
  bool any() const { return sum > 0 && sum < INFINITY; }
};

// Whether a sum of exponentials kept its digits and its range although it was shifted by the maximum of other rows. If
// not, the row is summed against its own maximum (exponentiate() below), as devices always do. A change of this range,
// or of the fallback, changes the last digits of some rows: raise kEngineSchema (plan/plan.hpp) with it.
inline bool in_range(double sum) { return sum > 1e-30 && sum < 1e30; }

// A head's sink logit as a term of a denominator of exp(l - shift); -infinity: the head has none.
inline double sink_term(double sink_logit, double shift) {
  return sink_logit > -double(INFINITY) ? std::exp(sink_logit - shift) : 0.0;
}

// e_i = exp(logit(i) - shift) for i < n. The shift is the maximum over these rows of l_i + ln weight(i), or the sink
// logit if that is larger. Rows of weight 0 do not enter the maximum. Rows for which counts(i) is false get 0 (their
// exponential might overflow). Returns the shift.
template <Team T, class Real, class L, class W, class F>
Real exponentiate(const T& team, int32_t n, double sink_logit, L logit, W weight, F counts, std::span<Real> e) {
  const Scored top = team.largest(n, [&](int32_t i) {
    e[size_t(i)] = logit(i);
    const Real w = weight(i);
    return w > 0 ? double(e[size_t(i)]) + (w == 1 ? 0.0 : std::log(double(w))) : -double(INFINITY);
  });
  double shift = top.index < 0 ? -double(INFINITY) : top.score;
  if (sink_logit > shift) shift = sink_logit;
  if (!(shift > -double(INFINITY))) shift = 0;
  team.each(n, [&](int32_t i) { e[size_t(i)] = counts(i) ? std::exp(e[size_t(i)] - Real(shift)) : Real(0); });
  return Real(shift);
}

}  // namespace kvreplay
