#pragma once
#include <cmath>
#include <cstdint>
#include <span>

#include "core/cache.hpp"
#include "core/vectors.hpp"

// Walks that choose signs so that a signed sum of vectors stays small. Vectors may be given (W is held) or
// known through their kernel K(i, j) = <u_i, u_j> alone (W is the sum over the earlier signs).

namespace kvreplay {

// <a - mean, b - mean>, from the differences.
template <class Real>
KVR_FN double centred_dot(std::span<const Real> a, std::span<const Real> b, std::span<const double> mean) {
  double s = 0;
  const Real *x = a.data(), *y = b.data();
  const double* m = mean.data();
  const int32_t n = int32_t(a.size());
  KVR_SIMD_SUM(s) for (int32_t c = 0; c < n; ++c) s += (double(x[c]) - m[c]) * (double(y[c]) - m[c]);
  return s;
}

// For i = 0, 1, ...: sign_i = decide(i, <W, u_i>), then W += sign_i u_i. product(i) is <W, u_i>; add(i, sign)
// does the update. Returns the index at which decide() gave no sign (0), or -1.
template <class Y, class D, class A>
KVR_FN int32_t sign_walk(int32_t n, Y product, D decide, A add) {
  for (int32_t i = 0; i < n; ++i) {
    const double sign = decide(i, product(i));
    if (sign == 0) return i;
    add(i, sign);
  }
  return -1;
}
// The same through a kernel; sign(i) is a place for the sign of vector i.
template <Team T, class K, class D, class S>
KVR_FN int32_t kernel_walk(const T& team, int32_t n, K kernel, D decide, S sign) {
  return sign_walk(
      n, [&](int32_t i) { return team.sum(i, [&](int32_t j) { return sign(j) * kernel(i, j); }); }, decide,
      [&](int32_t i, double e) {
        if (team.rank() == 0) sign(i) = e;
        team.sync();
      });
}
// The smaller sign class; equal sizes give +.
template <Team T, class S>
KVR_FN double smaller_class(const T& team, int32_t n, S sign) {
  return 2 * team.count(n, [&](int32_t i) { return sign(i) > 0; }) <= n ? 1 : -1;
}

enum class OnFail : int32_t { fail, clamp, coin };

// Self-Balancing Walk (Alweiss, Liu and Sawhney 2021), steps 2 and 3: y = <W, u_i>; fail if |y| > c r^2;
// sign + with probability 1/2 - y/(2 c r^2).
struct SelfBalancing {
  double limit = 0;  // c r^2
  OnFail on_fail = OnFail::fail;

  KVR_FN bool fails(double y) const { return std::abs(y) > limit; }
  // Negative: the walk stops.
  KVR_FN double chance(double y) const {
    if (y == 0 || (fails(y) && on_fail == OnFail::coin)) return 0.5;
    if (fails(y)) return on_fail == OnFail::fail ? -1 : y > 0 ? 0 : 1;
    return 0.5 - y / (2 * limit);
  }
  KVR_FN double sign(double y, double u) const {
    const double p = chance(y);
    return p < 0 ? 0 : u < p ? 1 : -1;
  }
};

// The bare walk on vectors [n, dim]: signs and probabilities, both 0 from a failure on, and W. Returns the
// index of the vector at which it failed, or -1.
inline int32_t self_balancing_walk(std::span<const double> vectors, int32_t dim, SelfBalancing rule,
                                   std::span<const double> uniforms, std::span<double> signs,
                                   std::span<double> probabilities, std::span<double> W) {
  const int32_t n = int32_t(vectors.size()) / dim;
  const auto u = [&](int32_t i) { return vectors.subspan(size_t(i) * size_t(dim), size_t(dim)); };
  for (int32_t i = 0; i < n; ++i) signs[size_t(i)] = probabilities[size_t(i)] = 0;
  for (double& w : W) w = 0;
  return sign_walk(
      n, [&](int32_t i) { return wide_dot(W, u(i)); },
      [&](int32_t i, double y) {
        const double p = rule.chance(y);
        probabilities[size_t(i)] = p < 0 ? 0 : p;
        return rule.sign(y, uniforms[size_t(i)]);
      },
      [&](int32_t i, double sign) {
        signs[size_t(i)] = sign;
        for (size_t c = 0; c < W.size(); ++c) W[c] += sign * u(i)[c];
      });
}

// SoftmaxBalance's kernel exp(scale <ki, kj>) <vi, vj> over its r^2 = exp(scale max ||k||^2) r_value^2, so
// that |y| is compared with c. The raw exponential overflows on real keys; the difference of exponents does
// not.
struct SoftmaxKernel {
  double scale, most_key2, value2;  // max ||k||^2 of the vectors at hand, r_value^2
  KVR_FN double operator()(double keys, double values) const {
    return value2 == 0 ? 0 : std::exp(scale * (keys - most_key2)) * values / value2;
  }
};

// Inner products of the rows from `first` on, and SoftmaxBalance's kernel with the largest norms of n of
// them.
template <Cache C>
struct RowProducts {
  const C& cache;
  int32_t first;
  KVR_FN double keys(int32_t i, int32_t j) const {
    return wide_dot(cache.key(first + i), cache.key(first + j));
  }
  KVR_FN double values(int32_t i, int32_t j) const {
    return wide_dot(cache.value(first + i), cache.value(first + j));
  }
  template <Team T>
  KVR_FN SoftmaxKernel softmax_kernel(const T& team, int32_t n, double scale) const {
    return {scale, team.largest(n, [&](int32_t i) { return keys(i, i); }).score,
            team.largest(n, [&](int32_t i) { return values(i, i); }).score};
  }
};

}  // namespace kvreplay
