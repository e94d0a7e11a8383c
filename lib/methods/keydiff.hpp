#pragma once
#include "core/linear.hpp"
#include "core/selecting.hpp"

namespace kvreplay {

// KeyDiff, Park et al. 2025, Algorithm 1: keys that differ from the mean direction of the others are kept.
//  1. unit_i = k_i / ||k_i||; a zero key stays zero.
//  2. anchor = mean of unit over the current candidates, newest and protected included, recomputed at every eviction.
//  3. Keep the B keys with the smallest cosine to the anchor (0 for a zero key or a zero anchor).
// `block`: the prompt in the paper's streaming form: hold its first B tokens, then rescore the held tokens together
// with the next block, and keep B.
struct KeyDiff : Selecting<> {
  static constexpr MethodInfo info{
      .name = "keydiff",
      .title = "keys unlike the mean key",
      .source = "KeyDiff, Park et al. 2025, Algorithm 1",
      .tier = 2,
      .memory = "B tokens",
      .deviation = "the prompt is cut at once; for the paper's blocks set `block`.",
      .default_phase = Phase::oneshot,
      .selects = true,
  };
  static constexpr Hooks hooks{"read_prompt evict layout traits protection state"};
  int32_t block = 0;
  std::span<double> state;  // [dim] anchor

  static void declare(auto& d) {
    d.integer("block", &KeyDiff::block, {0, kManyTokens}, "prompt tokens that arrive together; 0: all at once");
    protect<KeyDiff>(d);
  }
  void resolve(const MethodContext& context) {
    Selecting::resolve(context);
    if (block > 0 && !plan.is_plain())
      throw ParameterError("block",
                           "block says when the prompt is cut, as cut_every and prefill_chunk do; leave one out");
  }
  Layout layout(const MethodContext& context) const { return {.state_doubles = context.shape.dim, .scores = true}; }
  void traits(Traits& t) const {
    if (recent == 0)
      t.warning_when_streaming =
          "streaming without recent tokens loses the local context; give `recent`, for example a quarter of the budget";
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    rescore(team, cache, cache.size(), [&](int32_t i) { return prompt.key(cache.token(i)); });
  }
  void evict(const Team auto& team, Cache auto& cache) {
    if (!plan.is_plain()) {
      if (is_due(plan, cache)) rescore(team, cache, cache.size(), [&](int32_t i) { return cache.key(i); });
      return cut_by_scores(team, cache, protection());
    }
    while (cache.size() > budget) {
      const int32_t excess = cache.size() - budget, later = block > 0 && excess > block ? excess - block : 0;
      rescore(team, cache, cache.size() - later, [&](int32_t i) { return cache.key(i); });
      // Tokens of later blocks have not arrived yet: they stay and are not scored.
      keep_scored(team, cache, {.sinks = sinks, .recent = recent + later}, budget + later);
    }
  }

 private:
  // Sets score = -cosine to the anchor of rows 0..rows-1.
  void rescore(const Team auto& team, Cache auto& cache, int32_t rows, auto key) {
    team.each(rows, [&](int32_t i) { cache.score(i) = inverse(norm(key(i))); });
    weighted_sum(
        rows, [&](int32_t i) { return cache.score(i); }, key, state);
    for (double& coordinate : state) coordinate /= rows;
    const double length = inverse(norm(state));
    team.each(rows, [&](int32_t i) { cache.score(i) *= -wide_dot(key(i), state) * length; });
  }
  static double inverse(double length) { return length > 0 ? 1 / length : 0; }
};

}  // namespace kvreplay
