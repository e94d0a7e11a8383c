#pragma once
#include <cmath>
#include <cstdint>
#include <span>

#include "core/cache.hpp"
#include "core/linear.hpp"
#include "core/softmax.hpp"
#include "core/wide.hpp"

// Walks that choose signs so that a signed sum W of vectors u_i stays small. The vectors may be explicit (W is stored),
// or known only through their kernel K(i, j) = <u_i, u_j> (W is the sum over the earlier signs).

namespace kvreplay {

// Keys and values of the vectors of a walk in double, kLanes vectors side by side, so that products of a few vectors
// with many others use vector instructions.
class PackedRows {
 public:
  static constexpr int32_t kLanes = KVR_LANES, kRows = kLanes < 4 ? kLanes : 4;
  using Tile = double[kRows * kLanes];  // products of kRows vectors with the kLanes vectors of a block

  static int64_t doubles(int64_t rows, int64_t dim, int64_t v_dim) { return (rows + 8) * (dim + v_dim + 4); }
  // to: at least doubles(rows, dim, v_dim) numbers. key(i, c) and value(i, c) return the numbers. exact: they are
  // floats, so that their products are exact.
  template <class K, class V>
  PackedRows(const Team auto& team, int32_t rows, int32_t dim, int32_t v_dim, std::span<double> to, K key, V value,
             bool exact = false)
      : blocks_((rows + kLanes - 1) / kLanes), dim_(dim), v_dim_(v_dim), exact_(exact), numbers_(to.data()) {
    team.each(blocks_, [&](int32_t b) {
      for (int32_t l = 0; l < kLanes; ++l) {
        const int32_t i = b * kLanes + l < rows ? b * kLanes + l : rows - 1;
        for (int32_t c = 0; c < dim_; ++c) keys(b)[c * kLanes + l] = key(i, c);
        for (int32_t c = 0; c < v_dim_; ++c) values(b)[c * kLanes + l] = value(i, c);
      }
    });
  }
  // Products of vectors i .. i + kRows - 1 with those of block b; i is a multiple of kRows.
  void products(int32_t i, int32_t b, Tile& of_keys, Tile& of_values) const {
    const auto both = [&](auto fused) {
      multiply<decltype(fused)::value>(keys(i / kLanes) + i % kLanes, keys(b), dim_, of_keys);
      multiply<decltype(fused)::value>(values(i / kLanes) + i % kLanes, values(b), v_dim_, of_values);
    };
    if (exact_) wide_fused(both);
    else wide([&] { both(std::false_type{}); });
  }
  // Scratch for numbers of kRows vectors with all others, at most as many as there are rows.
  double* strip(int32_t row) const { return numbers_ + int64_t(blocks_) * kLanes * (dim_ + v_dim_ + row); }

 private:
  template <bool fused>
  static void multiply(const double* x, const double* block, int32_t n, Tile& out) {
    double s[kRows][kLanes];
    for (int32_t r = 0; r < kRows; ++r) KVR_SIMD for (int32_t l = 0; l < kLanes; ++l) s[r][l] = 0;
    for (int32_t c = 0; c < n; ++c)
      for (int32_t r = 0; r < kRows; ++r) {
        const double factor = x[c * kLanes + r];
        KVR_SIMD for (int32_t l = 0; l < kLanes; ++l) s[r][l] =
            multiply_add<fused>(factor, block[c * kLanes + l], s[r][l]);
      }
    for (int32_t r = 0; r < kRows; ++r) KVR_SIMD for (int32_t l = 0; l < kLanes; ++l) out[r * kLanes + l] = s[r][l];
  }
  double* keys(int32_t b) const { return numbers_ + int64_t(b) * kLanes * (dim_ + v_dim_); }
  double* values(int32_t b) const { return keys(b) + int64_t(dim_) * kLanes; }
  int32_t blocks_, dim_, v_dim_;
  bool exact_;
  double* numbers_;  // [blocks, dim + v_dim, kLanes], then the strips
};

// <a - mean, b - mean>, computed from the differences.
template <class Real>
double centred_dot(std::span<const Real> a, std::span<const Real> b, std::span<const double> mean) {
  double s = 0;
  const Real *x = a.data(), *y = b.data();
  const double* m = mean.data();
  const int32_t n = int32_t(a.size());
  KVR_SIMD_SUM(s) for (int32_t c = 0; c < n; ++c) s += (double(x[c]) - m[c]) * (double(y[c]) - m[c]);
  return s;
}

// For i = 0, 1, ...: sign_i = decide(i, <W, u_i>), then W += sign_i u_i. product(i) returns <W, u_i>; add(i, sign) does
// the update. Returns the index at which decide() returned no sign (0), or -1.
template <class Y, class D, class A>
int32_t sign_walk(int32_t n, Y product, D decide, A add) {
  for (int32_t i = 0; i < n; ++i) {
    const double sign = decide(i, product(i));
    if (sign == 0) return i;
    add(i, sign);
  }
  return -1;
}
// The walk through a kernel; sign(i) is a reference to the sign of vector i. kernel(i, j, out) writes K(i + r, j + l)
// to out[r columns + l] for r < `at_once`, l < `columns`; numbers after the last vector are ignored.
template <int32_t at_once, int32_t columns, Team T, class K, class D, class S>
int32_t kernel_walk(const T& team, int32_t n, const PackedRows& rows, K kernel, D decide, S sign) {
  const auto fill = [&](int32_t i) {
    team.each((i + at_once + columns - 1) / columns, [&](int32_t b) {
      double out[at_once * columns];
      kernel(i, b * columns, out);
      for (int32_t r = 0; r < at_once; ++r)
        for (int32_t l = 0; l < columns; ++l) rows.strip(r)[b * columns + l] = out[r * columns + l];
    });
  };
  return sign_walk(
      n,
      [&](int32_t i) {
        if (i % at_once == 0) fill(i);
        const double* const K_i = rows.strip(i % at_once);
        return team.sum(i, [&](int32_t j) { return sign(j) * K_i[j]; });
      },
      decide, [&](int32_t i, double e) { sign(i) = e; });
}
// K of vectors i, i + 1, ... with j, j + 1, ...: kernel(keys, values) computes it from the products of keys and values
// and overwrites the products of keys.
template <class F>
void packed_tile(const PackedRows& rows, int32_t i, int32_t j, const F& kernel, PackedRows::Tile& out) {
  PackedRows::Tile values;
  rows.products(i, j / PackedRows::kLanes, out, values);
  wide([&] { kernel(out, values); });
}
template <Team T, class F, class D, class S>
int32_t tile_walk(const T& team, int32_t n, const PackedRows& rows, F tile, D decide, S sign) {
  const auto kernel = [&](int32_t i, int32_t j, PackedRows::Tile& out) { packed_tile(rows, i, j, tile, out); };
  return kernel_walk<PackedRows::kRows, PackedRows::kLanes>(team, n, rows, kernel, decide, sign);
}
// The smaller sign class; + if both have equal sizes.
template <Team T, class S>
double smaller_class(const T& team, int32_t n, S sign) {
  return 2 * team.count(n, [&](int32_t i) { return sign(i) > 0; }) <= n ? 1 : -1;
}

enum class OnFail : int32_t { fail, clamp, coin };

// Self-Balancing Walk (Alweiss, Liu and Sawhney 2021), steps 2 and 3: y = <W, u_i>; fail if |y| > c r^2;
// sign + with probability 1/2 - y/(2 c r^2).
struct SelfBalancing {
  double limit = 0;  // c r^2
  OnFail on_fail = OnFail::fail;

  bool fails(double y) const { return std::abs(y) > limit; }
  // Probability of sign +; negative: the walk stops.
  double chance(double y) const {
    if (y == 0 || (fails(y) && on_fail == OnFail::coin)) return 0.5;
    if (fails(y)) return on_fail == OnFail::fail ? -1 : y > 0 ? 0 : 1;
    return 0.5 - y / (2 * limit);
  }
  double sign(double y, double u) const {
    const double p = chance(y);
    return p < 0 ? 0 : u < p ? 1 : -1;
  }
};

// SoftmaxBalance's kernel exp(scale <ki, kj>) <vi, vj> divided by its r^2 = exp(scale max ||k||^2) r_value^2, so that
// |y| is compared with c. The raw exponential overflows on real keys; the difference of exponents does not.
struct SoftmaxKernel {
  double scale, max_key2, value2;  // max ||k||^2 of the walked vectors, r_value^2
  double operator()(double keys, double values) const {
    return value2 == 0 ? 0 : std::exp(scale * (keys - max_key2)) * values / value2;
  }
  // Replaces `keys`, products of keys, by the kernel.
  void operator()(PackedRows::Tile& keys, const PackedRows::Tile& values) const {
    constexpr int32_t n = PackedRows::kRows * PackedRows::kLanes;
    for (double& x : keys) x = scale * (x - max_key2);
    exponentiate(keys);
    if (value2 == 0) {
      for (double& x : keys) x = 0;
      return;
    }
    KVR_SIMD for (int32_t l = 0; l < n; ++l) keys[l] = keys[l] * values[l] / value2;
  }
};

// The rows from `first` on; softmax_kernel() takes the largest norms of n of them.
template <Cache C>
struct RowsFrom {
  const C& cache;
  int32_t first;
  double keys(int32_t i) const { return wide_dot(cache.key(first + i), cache.key(first + i)); }
  double values(int32_t i) const { return wide_dot(cache.value(first + i), cache.value(first + i)); }
  template <Team T>
  SoftmaxKernel softmax_kernel(const T& team, int32_t n, double scale) const {
    return {scale, team.largest(n, [&](int32_t i) { return keys(i); }).score,
            team.largest(n, [&](int32_t i) { return values(i); }).score};
  }
  // Sum of n keys / divisor, written to the first [dim] of `to`.
  template <Team T>
  std::span<double> mean_key(const T& team, int32_t n, int32_t divisor, std::span<double> to) const {
    team.each(cache.shape().dim, [&](int32_t x) {
      double sum = 0;
      for (int32_t i = 0; i < n; ++i) sum += double(cache.key(first + i)[size_t(x)]);
      to[size_t(x)] = sum / divisor;
    });
    return to.first(size_t(cache.shape().dim));
  }
  // Keys minus `centre`, if there is one; values times the rows' weights if `weighted`.
  template <Team T>
  PackedRows packed(const T& team, int32_t n, std::span<double> to, std::span<const double> centre = {},
                    bool weighted = false) const {
    const auto key = [&](int32_t i, int32_t c) {
      return double(cache.key(first + i)[size_t(c)]) - (centre.empty() ? 0 : centre[size_t(c)]);
    };
    const auto value = [&](int32_t i, int32_t c) {
      return double(cache.value(first + i)[size_t(c)]) * (weighted ? double(cache.num(first + i)) : 1);
    };
    const bool exact = sizeof(typename C::real) == sizeof(float) && centre.empty() && !weighted;
    return {team, n, cache.shape().dim, cache.shape().v_dim, to, key, value, exact};
  }
};
template <Cache C>
RowsFrom(const C&, int32_t) -> RowsFrom<C>;  // clang deduces no aggregates before 17

}  // namespace kvreplay
