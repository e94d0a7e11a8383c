#pragma once
#include "core/policy.hpp"

namespace kvreplay {

// Rows between the protected ends of a cache.
struct Middle {
  int32_t first, count;
};

// Shared by the sampling methods: the first `sinks` and the last `recent` prompt tokens stay, and the M tokens between
// them are thinned out. If neither is set, both follow from the budget: 4 and floor(B/4) below B = 1024, else 256.
template <int32_t kSinks = kDerived, int32_t kRecent = kDerived>
struct Thinning {
  int32_t sinks = kSinks, recent = kRecent;
  int32_t budget = 0;

  template <class M>
  static void protect(auto& d) {
    d.integer("sinks", static_cast<int32_t M::*>(&M::sinks), {0, kManyTokens}, "first prompt tokens that stay",
              "4 below B = 1024 if recent is not given either, else 256");
    d.integer("recent", static_cast<int32_t M::*>(&M::recent), {0, kManyTokens}, "last prompt tokens that stay",
              "floor(B/4) below B = 1024 if sinks are not given either, else 256");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens;
    const bool small = sinks == kDerived && recent == kDerived && budget < 1024;
    if (sinks == kDerived) sinks = small ? 4 : 256;
    if (recent == kDerived) recent = small ? budget / 4 : 256;
    if (sinks + recent > budget) throw protection_error(sinks, recent, budget);
  }
  int32_t middle_of(int32_t held, int32_t first) const { return held > first + recent ? held - first - recent : 0; }
  int32_t middle_of(const MethodContext& context) const { return middle_of(context.prompt_tokens, sinks); }
  // The rows that are thinned out. A layer's sliding window may hold fewer rows than the prompt.
  Middle middle(const auto& cache) const {
    const int32_t first = held_sinks(cache, sinks);
    return {first, middle_of(cache.size(), first)};
  }
  // The smallest T for which the ends and floor(M/2^T) tokens fit into the budget; 0 if all tokens fit.
  int32_t rounds_to_fit(int32_t held, int32_t first) const {
    int32_t rounds = 0, left = middle_of(held, first);
    if (held <= budget) return 0;
    for (; rounds == 0 || first + recent + left > budget; left /= 2) ++rounds;
    return rounds;
  }
  // Sets both weights of the middle rows to w.
  void weigh_rows(const Team auto& team, auto& cache, Middle m, double w) const {
    cache.weigh_rows(team, m.first, m.count, [&](int32_t) { return RowWeights{w, w}; });
  }
  // Evicts the middle rows that have score 0.
  void evict_unscored(const Team auto& team, auto& cache, Middle m) const {
    cache.retain(team, [&](int32_t i) { return i < m.first || i >= m.first + m.count || cache.score(i) != 0; });
  }
};

}  // namespace kvreplay
