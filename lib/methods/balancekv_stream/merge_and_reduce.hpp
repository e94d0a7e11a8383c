#pragma once
#include <cmath>

#include "core/philox.hpp"
#include "methods/parts/walk.hpp"

namespace kvreplay {

// MergeAndReduce (BalanceKV, Algorithm 3): several structures over the rows of one cache, one for the denominator and
// one for each bucket of values. A row counts with `den` in the denominator and with `num` in the bucket that its score
// names. A weight 2^l means that the row is in C^l; 0 means that it was removed.
struct MergeAndReduce {
  static constexpr int32_t kDenominator = 0, kSlots = 4096;
  int32_t batch = 256, levels = 0;  // t, T
  std::span<double> state;          // number of tokens fed to each slot [kSlots]; rows [t] and signs [t] of a level

  static int64_t doubles(int32_t most) { return kSlots + 2 * int64_t(most); }
  double& fed(int32_t slot) const { return state[size_t(slot)]; }
  double& place(int32_t i) const { return state[size_t(kSlots + i)]; }
  int32_t row(int32_t i) const { return int32_t(place(i)); }
  double& sign(int32_t i) const { return place(int32_t(state.size() - kSlots) / 2 + i); }

  static bool held(const auto& cache, int32_t row) { return cache.num(row) != 0 || cache.den(row) != 0; }
  static double weight(const auto& cache, int32_t row, int32_t slot) {
    if (slot == kDenominator) return double(cache.den(row));
    return cache.score(row) == slot ? double(cache.num(row)) : 0;
  }
  static void weigh(auto& cache, int32_t row, int32_t slot, double w) {
    if (slot == kDenominator) cache.weigh(row, double(cache.num(row)), w);
    else cache.weigh(row, w, double(cache.den(row)));
  }

  // Adds a token to C^0. If t divides the counter j: p = j/t, l = 0; while p is an integer and l < T: C^(l+1) gains the
  // rows of C^l that `balance` keeps, C^l is emptied, l += 1, p /= 2. balance(n, level) sets sign(i) of row(i), i < n;
  // it returns false if the method failed.
  template <Team T, class C, class B>
  void append(const T& team, C& cache, int32_t slot, B balance) const {
    const int64_t j = int64_t(fed(slot)) + 1;
    fed(slot) = double(j);
    if (j % batch != 0 || cache.failure() != 0) return;
    int64_t p = j / batch;
    for (int32_t level = 0; level < levels; ++level, p /= 2) {
      reduce(team, cache, slot, level, balance);
      if (p % 2 != 0) break;
    }
  }
  // Erases a structure.
  void erase(const Team auto& team, auto& cache, int32_t slot) const {
    if (fed(slot) == 0) return;
    cache.weigh_rows(team, 0, cache.size(), [&](int32_t i) {
      const bool in = weight(cache, i, slot) != 0;
      return RowWeights{in && slot != kDenominator ? 0.0 : double(cache.num(i)),
                        in && slot == kDenominator ? 0.0 : double(cache.den(i))};
    });
    fed(slot) = 0;
  }

 private:
  // The smaller class moves up one level; the other is removed.
  template <Team T, class C, class B>
  void reduce(const T& team, C& cache, int32_t slot, int32_t level, B balance) const {
    const double w = std::ldexp(1.0, level);
    const auto here = [&](int32_t i) { return weight(cache, i, slot) == w; };
    const int32_t n = team.count(cache.size(), here);
    for (int32_t i = 0, at = 0; i < cache.size(); ++i)
      if (here(i)) place(at++) = i;
    if (!balance(n, level)) return;
    const double small = smaller_class(team, n, [&](int32_t i) { return sign(i); });
    for (int32_t i = 0; i < n; ++i) weigh(cache, row(i), slot, sign(i) == small ? 2 * w : 0);
  }
};

// A numerator in buckets of ||v||, 2^(i-1) < ||v|| <= 2^i, and a denominator of pairs (k, 1). SoftmaxBalance halves
// their levels.
struct BalancedSums : MergeAndReduce {
  static constexpr int32_t kBucketZero = 2048,
                           kSmallest = -1074;  // slot of bucket i: i + 2048; exponent of the least double
  double scale = 1;
  SelfBalancing rule;
  std::span<double> centre;  // [dim] subtracted from the keys in the walks; it does not change the softmax
  std::span<double> packed;  // rows of a walk
  Rng rng;

  static int64_t doubles(int32_t rows, int32_t dim, int32_t v_dim) {
    return dim + MergeAndReduce::doubles(rows) + PackedRows::doubles(rows, dim, v_dim);
  }
  // all: doubles(rows, dim, v_dim); the first [dim] are the centre.
  void bind(std::span<double> all, int32_t rows, int32_t dim) {
    const auto own = size_t(MergeAndReduce::doubles(rows));
    centre = all.first(size_t(dim)), state = all.subspan(size_t(dim), own);
    packed = all.subspan(size_t(dim) + own);
  }
  double key_product(const auto& cache, int32_t a, int32_t b) const {
    return centred_dot(cache.key(a), cache.key(b), std::span<const double>(centre));
  }
  static int32_t slot_of(double norm) {
    int exponent = 0;
    const double mantissa = std::frexp(norm, &exponent);
    return kBucketZero + (mantissa == 0.5 ? exponent - 1 : exponent);
  }
  // Adds the token of a row to the denominator and, unless its value is zero, to its bucket. Returns ||v||.
  double feed(const Team auto& team, auto& cache, int32_t row) const {
    const double norm = std::sqrt(wide_dot(cache.value(row), cache.value(row)));
    const int32_t slot = norm > 0 ? slot_of(norm) : kDenominator;
    cache.score(row) = slot;
    cache.weigh(row, norm > 0 ? 1 : 0, 1);
    append(team, cache, kDenominator,
           [&](int32_t n, int32_t level) { return balance(team, cache, kDenominator, n, level); });
    if (norm > 0)
      append(team, cache, slot, [&](int32_t n, int32_t level) { return balance(team, cache, slot, n, level); });
    return norm;
  }
  // Erases the buckets i <= most.
  void erase_buckets(const Team auto& team, auto& cache, double most) const {
    const int32_t buckets = most >= kSmallest ? int32_t(std::floor(most)) - kSmallest + 1 : 0;
    const auto slot = [](int32_t i) { return kBucketZero + kSmallest + i; };
    if (team.count(buckets, [&](int32_t i) { return fed(slot(i)) != 0; }) == 0) return;
    for (int32_t i = 0; i < buckets; ++i) erase(team, cache, slot(i));
  }

 private:
  // SoftmaxBalance of n rows; false if it failed.
  bool balance(const Team auto& team, auto& cache, int32_t slot, int32_t n, int32_t level) const {
    const bool ones = slot == kDenominator;
    const auto key2 = [&](int32_t i) { return key_product(cache, row(i), row(i)); };
    const double value2 = ones ? 1 : std::ldexp(1.0, 2 * (slot - kBucketZero));
    const SoftmaxKernel expv{scale, team.largest(n, key2).score, value2};
    const PackedRows rows{
        team,
        n,
        cache.shape().dim,
        ones ? 0 : cache.shape().v_dim,
        packed,
        [&](int32_t i, int32_t c) { return double(cache.key(row(i))[size_t(c)]) - centre[size_t(c)]; },
        [&](int32_t i, int32_t c) { return double(cache.value(row(i))[size_t(c)]); }};
    const auto K = [&](PackedRows::Tile& keys, PackedRows::Tile& values) {
      if (ones)
        for (double& x : values) x = 1;
      expv(keys, values);
    };
    const auto decide = [&](int32_t i, double y) {
      return rule.sign(y, rng.uniform(RngStream::sign_walk, cache.token(row(i)), slot, level));
    };
    const int32_t failed = tile_walk(team, n, rows, K, decide, [&](int32_t i) -> double& { return sign(i); });
    if (failed >= 0) cache.fail(1, cache.token(row(failed)));
    return failed < 0;
  }
};

}  // namespace kvreplay
