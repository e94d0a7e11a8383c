#pragma once
#include <algorithm>

#include "methods/parts/thinning.hpp"
#include "methods/parts/walk.hpp"

namespace kvreplay {

// KH-Compress (kernel halving) of low-rank thinning, Carrell et al. 2025, on the M middle tokens.
//  1. N = largest power of 4 <= M; take the N tokens floor(i M/N).
//  2. K(i, j) = exp(scale (<ki, kj> - max ||k||^2)) (<vi, vj> + (largest entry of V)^2).
//  3. log4(N) - g rounds on buckets of consecutive tokens: 4^(g+1) at first, doubled after each round.
//  4. Halve a bucket of S tokens: pairs (2i, 2i+1), D = Gram matrix of their differences, a_i = sqrt(D_ii), m_i =
//     running maximum of a, p = 0.5/(4^(g+1) rounds N), c = 1/2 + ln(2S/(p S^2)). Pair 0 keeps its even token. Pair i
//     keeps its odd one iff (2U-1) c a_i m_i <= <D_i, signed sum of the earlier differences> (+ where the even one was
//     kept).
//  5. With probability 1/2 (one U per bucket) the other halves stay instead.
//  6. The 2^g sqrt(N) survivors have weight M/survivors.
struct KernelHalving : Thinning<4, 32> {
  static constexpr MethodInfo info{
      .name = "kernel_halving",
      .title = "kernel halving (KH-Compress)",
      .source = "Low-Rank Thinning, Carrell et al. 2025, KH-Compress",
      .tier = 3,
      .memory = "2^g sqrt(N) of the middle, sinks, recent and later tokens, one weight",
      .deviation =
          "sinks and recents are our addition. g determines the size: the budget picks the largest g that fits.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .alias = "kh_compress",
  };
  static constexpr Hooks hooks{"evict extra_bytes layout traits rng_arrays state rng"};
  int32_t g = kDerived;
  double scale = 1;
  std::span<double> state;  // packed rows of a bucket
  Rng rng;

  static void declare(auto& d) {
    d.integer("g", &KernelHalving::g, {0, 15}, "oversampling: 2^g sqrt(N) tokens are left", "largest that fits");
    protect<KernelHalving>(d);
  }
  void resolve(const MethodContext& context) {
    Thinning::resolve(context);
    scale = context.scale;
    const int32_t M = middle_of(context), k = power_of_four(M), room = budget - sinks - recent;
    if (g == kDerived)
      for (g = 0; g < k && 2 << (g + k) <= room;) ++g;
    if (context.prompt_tokens > budget && left_of(k) > room)
      throw ParameterError(
          "g", "g " + std::to_string(g) + " leaves " + std::to_string(left_of(k)) + " of " + std::to_string(M) +
                   " middle tokens, more than the " + std::to_string(room) +
                   " that the budget has room for; make g, sinks or recent smaller, or the budget larger");
  }
  void traits(Traits& t) const { t.random = true; }
  std::vector<RngArray> rng_arrays(const MethodContext& s) const {
    const int32_t k = power_of_four(middle_of(s)), N = 1 << 2 * k, rounds = std::max(0, k - g);
    return {{"U", RngStream::halving_walk, rounds, N / 2}, {"UF", RngStream::halving_flip, rounds, N >> 2 * (g + 1)}};
  }
  Layout layout(const MethodContext& s) const {
    const int64_t doubles = PackedRows::doubles(middle_of(s), s.shape.dim, s.shape.v_dim);
    return {.state_doubles = doubles, .scores = true, .weights = true};
  }
  void extra_bytes(ExtraBytes& c, const auto& cache) const { c.weight_floats = cache.evictions() > 0 ? 1 : 0; }

  void evict(const Team auto& team, Cache auto& cache) {
    const Middle all = middle(cache);
    if (cache.size() <= budget || all.count == 0) return;
    const int32_t k = power_of_four(all.count), N = 1 << 2 * k, rounds = k > g ? k - g : 0;
    team.each(all.count, [&](int32_t i) { cache.score(all.first + i) = 0; });
    team.each(N, [&](int32_t i) { cache.score(all.first + int32_t(int64_t(i) * all.count / N)) = 1; });
    evict_unscored(team, cache, all);
    const Kernel K = kernel(team, cache, {all.first, N});
    for (int32_t round = 0; round < rounds; ++round) {
      const Middle m{all.first, N >> round};
      const int32_t S = 1 << (2 * (g + 1) + round);
      const double p = 0.5 / (std::ldexp(1.0, 2 * (g + 1)) * rounds * N), c = 0.5 + std::log(2 / (p * S));
      for (int32_t b = 0; b < m.count / S; ++b) halve(team, cache, K, {m.first + b * S, S}, {round, b, c});
      evict_unscored(team, cache, m);
    }
    const int32_t survivors = rounds > 0 ? N >> rounds : N;
    weigh_rows(team, cache, {all.first, survivors}, double(all.count) / survivors);
  }

 private:
  struct Kernel {
    double scale, max_key2, most_value2;
    void operator()(PackedRows::Tile& keys, const PackedRows::Tile& values) const {
      for (double& x : keys) x = scale * (x - max_key2);
      exponentiate(keys);
      for (size_t l = 0; l < std::size(keys); ++l) keys[l] *= values[l] + most_value2;
    }
  };
  struct Bucket {
    int32_t round, index;
    double c;
  };
  static int32_t power_of_four(int32_t M) {
    int32_t k = 0;
    while (4 << 2 * k <= M) ++k;
    return k;
  }
  int32_t left_of(int32_t k) const { return 1 << (g < k ? g + k : 2 * k); }

  Kernel kernel(const Team auto& team, const auto& cache, Middle m) const {
    const auto entry = [&](int32_t i) {
      double most = 0;
      for (const auto x : cache.value(m.first + i)) most = std::abs(double(x)) > most ? std::abs(double(x)) : most;
      return most;
    };
    const double v = team.largest(m.count, entry).score;
    const auto key2 = [&](int32_t i) { return wide_dot(cache.key(m.first + i), cache.key(m.first + i)); };
    return {scale, team.largest(m.count, key2).score, v * v};
  }
  // Steps 4 and 5: replaces the scores of a bucket by 1 (stays) and 0. The sign of a pair is stored on its even token.
  void halve(const Team auto& team, auto& cache, const Kernel& K, Middle m, Bucket bucket) {
    const auto sign = [&](int32_t i) -> double& { return cache.score(m.first + 2 * i); };
    const PackedRows rows = RowsFrom{cache, m.first}.packed(team, m.count, state);
    constexpr int32_t kLanes = PackedRows::kLanes, kPairs = kLanes / 2, kRows = PackedRows::kRows / 2;
    const auto D = [&](int32_t i, int32_t j, double(&out)[kRows * kPairs]) {
      PackedRows::Tile tile;
      packed_tile(rows, 2 * i, 2 * j, K, tile);
      for (int32_t r = 0; r < kRows; ++r)
        for (int32_t p = 0; p < kPairs; ++p) {
          const double *even = tile + 2 * r * kLanes + 2 * p, *odd = even + kLanes;
          out[r * kPairs + p] = (even[0] - even[1]) - (odd[0] - odd[1]);
        }
    };
    double longest = 0;
    const auto keep_even = [&](int32_t i, double y) {
      const double d = rows.strip(i % kRows)[i], a = d > 0 ? std::sqrt(d) : 0;
      longest = a > longest ? a : longest;
      const double u = rng.uniform(RngStream::halving_walk, bucket.index * (m.count / 2) + i, 0, bucket.round);
      return i == 0 || (2 * u - 1) * bucket.c * a * longest > y ? 1.0 : -1.0;
    };
    kernel_walk<kRows, kPairs>(team, m.count / 2, rows, D, keep_even, sign);
    const bool flip = rng.uniform(RngStream::halving_flip, bucket.index, 0, bucket.round) < 0.5;
    team.each(m.count / 2, [&](int32_t i) {
      const bool even = (sign(i) > 0) != flip;
      cache.score(m.first + 2 * i) = even ? 1 : 0, cache.score(m.first + 2 * i + 1) = even ? 0 : 1;
    });
  }
};

}  // namespace kvreplay
