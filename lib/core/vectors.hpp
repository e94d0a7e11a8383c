#pragma once
#include <cmath>
#include <span>

#include "core/team.hpp"

// Arithmetic of scores. It uses double whatever the tensors are (convention C11), and the same order for equal vectors,
// so that equal tokens tie (C8).

namespace kvreplay {

template <class A, class B>
double wide_dot(std::span<A> a, std::span<B> b) {
  double s = 0;
  const A* x = a.data();
  const B* y = b.data();
  const int32_t n = int32_t(a.size());
  KVR_SIMD_SUM(s) for (int32_t c = 0; c < n; ++c) s += double(x[c]) * double(y[c]);
  return s;
}
template <class A>
double norm(std::span<A> a) {
  return std::sqrt(wide_dot(a, a));
}

// The largest of `width` neighbours of s[j], centred at j; positions outside [0, count) are left out.
inline double largest_near(const double* s, int32_t j, int32_t count, int32_t width) {
  const int32_t first = j - width / 2 < 0 ? 0 : j - width / 2;
  const int32_t last = j + width / 2 >= count ? count - 1 : j + width / 2;
  double most = s[first];
  for (int32_t i = first; i <= last; ++i) most = s[i] > most ? s[i] : most;
  return most;
}

// In place: subtracts the mean and divides by the standard deviation (divisor n), or by `least` if that is larger.
inline void standardise(const Team auto& team, std::span<double> x, double least) {
  const int32_t n = int32_t(x.size());
  const double mean = team.sum(n, [&](int32_t i) { return x[size_t(i)]; }) / n;
  const double squares = team.sum(n, [&](int32_t i) { return (x[size_t(i)] - mean) * (x[size_t(i)] - mean); });
  const double deviation = std::sqrt(squares / n) > least ? std::sqrt(squares / n) : least;
  team.each(n, [&](int32_t i) { x[size_t(i)] = (x[size_t(i)] - mean) / deviation; });
}

// Softmax in place, shifted by the maximum.
inline void softmax(const Team auto& team, std::span<double> x) {
  const int32_t n = int32_t(x.size());
  const double top = team.largest(n, [&](int32_t i) { return x[size_t(i)]; }).score;
  team.each(n, [&](int32_t i) { x[size_t(i)] = std::exp(x[size_t(i)] - top); });
  const double total = team.sum(n, [&](int32_t i) { return x[size_t(i)]; });
  team.each(n, [&](int32_t i) { x[size_t(i)] /= total; });
}

}  // namespace kvreplay
