#pragma once
#include "core/selecting.hpp"
#include "core/vectors.hpp"

namespace kvreplay {

// CurDKV, Sengupta et al. 2025, section 4: the leverage of a token in keys and values, approximated by norms.
//  1. ||k_j||^2 and ||v_j||^2, each divided by its sum over consecutive blocks of `block` tokens.
//  2. Score = their product, normalised to sum 1; the first `sinks` get 1.
//  3. Keep the top B; later tokens are kept.
struct CurDkv : Selecting<4> {
  static constexpr MethodInfo info{
      .name = "curdkv",
      .title = "leverage of keys and values",
      .source = "CurDKV, Sengupta et al. 2025, section 4 (product of key and value scores, as kvpress 0.5.5)",
      .tier = 2,
      .memory = "B prompt tokens and every later one",
      .deviation = "",
      .streams = false,
      .default_phase = Phase::oneshot,
      .selects = true,
  };
  static constexpr Hooks hooks{"read_prompt evict layout protection"};
  int32_t block = 16;

  static void declare(auto& d) {
    d.integer("block", &CurDkv::block, {1, kManyTokens}, "tokens that share a normaliser");
    protect<CurDkv>(d);
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const auto k2 = [&](int32_t i) { return wide_dot(prompt.key(cache.token(i)), prompt.key(cache.token(i))); };
    const auto v2 = [&](int32_t i) { return wide_dot(prompt.value(cache.token(i)), prompt.value(cache.token(i))); };
    const int32_t n = cache.size();
    team.each((n - 1) / block + 1, [&](int32_t b) {
      const int32_t begin = b * block, end = n - begin < block ? n : begin + block;
      double keys = 0, values = 0;
      for (int32_t i = begin; i < end; ++i) keys += k2(i), values += v2(i);
      for (int32_t i = begin; i < end; ++i) cache.score(i) = share(k2(i), keys) * share(v2(i), values);
    });
    const double total = team.sum(n, [&](int32_t i) { return cache.score(i); });
    const int32_t first = held_sinks(cache, sinks);
    team.each(n, [&](int32_t i) { cache.score(i) = i < first ? 1 : share(cache.score(i), total); });
  }

 private:
  static double share(double x, double total) { return total > 0 ? x / total : 0; }
};

}  // namespace kvreplay
