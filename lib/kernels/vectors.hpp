#pragma once
#include <cstdint>

// Vectors of Vector<Real> (see vector_kernels.hpp): loads, stores, sums.

#define KVR_INLINE inline __attribute__((always_inline))

namespace kvreplay::kernels {
namespace {

template <class Real>
KVR_INLINE typename Vector<Real>::Raw load(const Real* p) {
  typename Vector<Real>::Raw x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
template <class Real>
KVR_INLINE void store(Real* p, typename Vector<Real>::Raw x) {
  __builtin_memcpy(p, &x, sizeof x);
}
template <class Real>
KVR_INLINE typename Vector<Real>::Raw all(Real x) {
  return x - typename Vector<Real>::Raw{};  // subtracting 0, unlike adding it, is no operation
}
KVR_INLINE int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

// Adds lanes in a fixed tree.
KVR_INLINE double sum_of_lanes(typename Vector<double>::Raw x) {
  double lane[Vector<double>::kLanes];
  store(lane, x);
  for (int32_t half = Vector<double>::kLanes / 2; half > 0; half /= 2)
    for (int32_t i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}

template <class Real>
KVR_INLINE typename Vector<Real>::Raw load_up_to(const Real* p, int32_t n) {
  return n == Vector<Real>::kLanes ? load(p) : Vector<Real>::load_first(p, n);
}

// Calls f(i, count) for runs of up to one vector: elements i .. i + count - 1.
template <class Real, class F>
KVR_INLINE void by_vectors(int64_t n, F f) {
  constexpr int64_t kStep = Vector<Real>::kLanes;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) f(i, int32_t(kStep));
  if (i < n) f(i, int32_t(n - i));
}
template <class Real>
KVR_INLINE void store_up_to(Real* p, typename Vector<Real>::Raw x, int32_t n) {
  if (n == Vector<Real>::kLanes) store(p, x);
  else Vector<Real>::store_first(p, x, n);
}

// Sums terms x(i, n): a vector of numbers from i on, of which the first n count.
template <class Real, class F>
KVR_INLINE double sum_terms(int32_t n, F term) {
  using V = Vector<Real>;
  constexpr int32_t kStep = 2 * V::kLanes;
  typename Vector<double>::Raw sum[2][2] = {};
  int32_t i = 0;
  for (; i + kStep <= n; i += kStep)
    for (int32_t j = 0; j < 2; ++j) V::widen_add(term(i + j * V::kLanes, V::kLanes), sum[j][0], sum[j][1]);
  for (; i < n; i += V::kLanes) V::widen_add(term(i, smaller(V::kLanes, n - i)), sum[0][0], sum[0][1]);
  return sum_of_lanes((sum[0][0] + sum[0][1]) + (sum[1][0] + sum[1][1]));
}
// The first n numbers, in double; zeros after them.
template <class Real>
KVR_INLINE Vector<double>::Raw widened(const Real* p, int32_t n) {
  double lane[Vector<double>::kLanes] = {};
  if (n >= Vector<double>::kLanes)
    for (int32_t l = 0; l < Vector<double>::kLanes; ++l) lane[l] = double(p[l]);
  else
    for (int32_t l = 0; l < n; ++l) lane[l] = double(p[l]);
  return load(lane);
}

}  // namespace
}  // namespace kvreplay::kernels
