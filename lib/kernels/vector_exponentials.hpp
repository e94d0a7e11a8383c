#pragma once
#include "kernels/table.hpp"
#include "kernels/vectors.hpp"

// Exponentials and logarithms of rows; see vector_kernels.hpp.

namespace kvreplay::kernels {
namespace {

template <class Real>
struct Exponential;
template <>
struct Exponential<float> {
  static constexpr float kWhole = 0x1.8p23f, kLog2e = 0x1.715476p0f;
  static constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr uint32_t kShift = 23, kOne = 127 << 23;
  static constexpr float kLowest = -87.3365402f;  // smallest argument whose exponential is a normal number
  static constexpr float kHighest = 89;
  // Minimax on [-ln 2 / 2, ln 2 / 2], 1 at 0: relative error 3.2e-9 before rounding.
  static constexpr float kCoefficients[] = {
      0x1.6a5228p-10f, 0x1.12396cp-7f, 0x1.5558aap-5f, 0x1.555492p-3f, 0x1.fffffcp-2f, 1, 1};
};
template <>
struct Exponential<double> {
  static constexpr double kWhole = 0x1.8p52, kLog2e = 0x1.71547652b82fep0;
  static constexpr double kLn2High = 0x1.62e42fefap-1, kLn2Low = 0x1.cf79abc9e3b3ap-40;
  static constexpr uint64_t kShift = 52, kOne = uint64_t(1023) << 52;
  static constexpr double kLowest = -708.39641853226408, kHighest = 710;
  // Taylor; the next term is below 5e-18.
  static constexpr double kCoefficients[] = {
      1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
      1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       1.0 / 2,      1.0,         1.0};
};

// 0 where the result would not be normal, infinity where it is too large; NaN stays NaN.
template <class Real>
KVR_INLINE typename Vector<Real>::Raw exponential(typename Vector<Real>::Raw y) {
  using V = Vector<Real>;
  using E = Exponential<Real>;
  using Raw = typename V::Raw;
  constexpr bool kScales = requires(Raw x) { V::scale(x, x); };  // an instruction for p 2^w
  const Raw x = kScales ? y : E::kHighest < y ? all(E::kHighest) : y;
  const Raw shifted = V::fma(x, all(E::kLog2e), all(E::kWhole));
  const Raw whole = shifted - E::kWhole;
  const Raw r = V::fma(whole, all(-E::kLn2Low), V::fma(whole, all(-E::kLn2High), x));
  Raw p = all(E::kCoefficients[0]);
#pragma GCC unroll 16
  for (uint32_t i = 1; i < sizeof E::kCoefficients / sizeof(Real); ++i) p = V::fma(p, r, all(E::kCoefficients[i]));
  if constexpr (kScales) p = V::scale(p, whole);
  else p = p * (Raw)(((typename V::Whole)shifted << E::kShift) + E::kOne);
  return x < all(E::kLowest) ? Raw{} : p;
}

// Sums of a row in double. Four float vectors are added before they are widened, which rounds twice.
template <class Real>
struct Sums {
  using Raw = typename Vector<Real>::Raw;
  Vector<double>::Raw sum[2] = {}, squares[2] = {};
  KVR_INLINE void add(const Raw* x) {
    using V = Vector<Real>;
    V::widen_add((x[0] + x[1]) + (x[2] + x[3]), sum[0], sum[1]);
    V::widen_add(V::fma(x[0], x[0], x[1] * x[1]) + V::fma(x[2], x[2], x[3] * x[3]), squares[0], squares[1]);
  }
  KVR_INLINE RowSums total() const { return {sum_of_lanes(sum[0] + sum[1]), sum_of_lanes(squares[0] + squares[1])}; }
};

template <class Real>
RowSums exponentiate(Real* row, int32_t n, Real scale, Real shift) {
  using V = Vector<Real>;
  using Raw = typename V::Raw;
  constexpr int32_t kStep = 4 * V::kLanes;
  const Raw factor = all(scale), minus = all(-shift);
  Sums<Real> sums;
  int32_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    Raw x[4];
#pragma GCC unroll 4
    for (int32_t j = 0; j < 4; ++j) {
      x[j] = exponential<Real>(V::fma(load(row + i + j * V::kLanes), factor, minus));
      store(row + i + j * V::kLanes, x[j]);
    }
    sums.add(x);
  }
  if (i == n) return sums.total();
  Raw x[4] = {};
  for (int32_t j = 0; j < 4 && i < n; ++j, i += V::kLanes) {
    const int32_t left = n - i;
    if (left >= V::kLanes) {
      x[j] = exponential<Real>(V::fma(load(row + i), factor, minus));
      store(row + i, x[j]);
      continue;
    }
    V::store_first(row + i, exponential<Real>(V::fma(V::load_first(row + i, left), factor, minus)), left);
    x[j] = V::load_first(row + i, left);
  }
  sums.add(x);
  return sums.total();
}

// ln x = e ln 2 + ln m, m in [sqrt 1/2, sqrt 2); with s = (m - 1) / (m + 1), ln m = 2 (s + s^3 / 3 + ..).
// x: normal.
KVR_INLINE typename Vector<double>::Raw logarithm(typename Vector<double>::Raw x) {
  using V = Vector<double>;
  using Raw = V::Raw;
  constexpr uint64_t kMantissa = (uint64_t(1) << 52) - 1, kTwo52 = uint64_t(0x433) << 52;
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcd;
  // Subtracts the bits of m's least value before the exponent is read, so that m >= sqrt 1/2.
  const V::Whole bits = (V::Whole)x - kRootHalf;
  const V::Whole exponent = ((bits >> 52) + 1024) & 0xfff;
  const Raw e = (Raw)(exponent | kTwo52) - (0x1p52 + 1024);
  const Raw m = (Raw)((bits & kMantissa) + kRootHalf);
  const Raw s = (m - 1.0) / (m + 1.0), z = s * s;
  Raw p = all(2.0 / 23);
#pragma GCC unroll 16
  for (int32_t k = 21; k >= 3; k -= 2) p = V::fma(p, z, all(2.0 / k));
  const Raw tail = V::fma(p * z, s, e * Exponential<double>::kLn2Low);
  return V::fma(e, all(Exponential<double>::kLn2High), V::fma(s, all(2.0), tail));
}

void logarithms(double* x, int32_t n) {
  by_vectors<double>(n, [&](int64_t i, int32_t count) {
    store_up_to<double>(x + i, logarithm(load_up_to<double>(x + i, count)), count);
  });
}

// The logarithm of 0 or of a denormal double is arbitrary; it is multiplied by 0 or almost 0.
template <class Real>
double sum_x_log_x(const Real* row, int32_t n) {
  using V = Vector<double>;
  V::Raw sum[2] = {};
  for (int32_t i = 0, j = 0; i < n; i += V::kLanes, j = 1 - j) {
    double lane[V::kLanes] = {};
    if (i + V::kLanes <= n)
      for (int32_t l = 0; l < V::kLanes; ++l) lane[l] = double(row[i + l]);
    else
      for (int32_t l = 0; l < n - i; ++l) lane[l] = double(row[i + l]);
    const V::Raw x = load(lane);
    sum[j] += x * logarithm(x);
  }
  return sum_of_lanes(sum[0] + sum[1]);
}

}  // namespace
}  // namespace kvreplay::kernels
