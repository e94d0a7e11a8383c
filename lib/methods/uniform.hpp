#pragma once
#include <algorithm>

#include "core/policy.hpp"

namespace kvreplay {

// Uniform sampling, the baseline of BalanceKV: sinks and recent prompt tokens exactly, m of the M tokens
// between them without replacement, each standing for M/m of them.
//  1. Draw u_j for each middle token.  2. Keep the m with the smallest u_j (ties: lower index).
//  3. Weight M/m in numerator and denominator on those, 1 on sinks, recents and later tokens.
struct Uniform {
  static constexpr MethodInfo info{
      .name = "uniform",
      .title = "uniform sample, reweighted",
      .source = "baseline of BalanceKV, Han et al. 2025, section 4",
      .tier = 1,
      .memory = "B prompt tokens and every later one, one weight",
      .deviation = "exactly m tokens; the released sampler is slightly non-uniform.",
      .streams = false,
      .default_phase = Phase::oneshot,
  };
  enum class Weights { ratio, none };
  int32_t sinks = kDerived, recent = kDerived, m = kDerived;
  Weights weights = Weights::ratio;
  int32_t budget = 0;
  Draws draws;

  static void declare(auto& d) {
    d.integer("sinks", &Uniform::sinks, {0, kManyTokens}, "first prompt tokens that stay",
              "4 below B = 1024, else 256");
    d.integer("recent", &Uniform::recent, {0, kManyTokens}, "last prompt tokens that stay",
              "floor(B/4) below B = 1024, else 256");
    d.integer("m", &Uniform::m, {0, kManyTokens}, "tokens sampled from the middle", "B - sinks - recent");
    d.choice("weights", &Uniform::weights, {"ratio", "none"}, "M/m on sampled tokens, or 1");
  }
  void resolve(const Scene& scene) {
    budget = scene.budget;
    const bool small = budget < 1024;
    if (sinks == kDerived) sinks = small ? 4 : 256;
    if (recent == kDerived) recent = small ? budget / 4 : 256;
    if (sinks + recent > budget)
      throw ParameterError("recent", "sinks " + std::to_string(sinks) + " + recent " +
                                         std::to_string(recent) + " exceed the budget of " +
                                         std::to_string(budget) + "; make them smaller or the budget larger");
    const int32_t room = budget - sinks - recent;
    if (m == kDerived) m = room;
    if (m > room)
      throw ParameterError("m", "m " + std::to_string(m) + " with sinks " + std::to_string(sinks) +
                                    " and recent " + std::to_string(recent) + " exceeds the budget of " +
                                    std::to_string(budget));
  }
  static bool random(const Uniform&) { return true; }
  std::vector<DrawArray> draw_arrays(const Scene& s) const {
    return {{"u uniforms", Structure::uniform_sampling, 1, std::max(0, s.prompt - sinks - recent)}};
  }
  Layout layout(const Scene&) const { return {.scores = true, .weights = weights == Weights::ratio}; }
  void charge(Charge& c, const auto& cache) const {
    c.weight_floats = weights == Weights::ratio && cache.evictions() > 0 ? 1 : 0;
  }

  template <class Real>
  KVR_FN void read_prompt(const Team auto& team, const Prompt<Real>&, BasicCache<Real>& cache) {
    const int32_t first = held_sinks(cache, sinks);
    team.each(middle(cache),
              [&](int32_t j) { cache.score(first + j) = -draws.uniform(Structure::uniform_sampling, j); });
  }
  KVR_FN void evict(const Team auto& team, Cache auto& cache) {
    const int32_t M = middle(cache), first = held_sinks(cache, sinks);
    if (cache.size() <= budget || M <= m) return;
    keep_best(team, cache, {.sinks = sinks, .recent = recent}, m, [&](int32_t i) { return cache.score(i); });
    if (weights == Weights::none) return;
    const double w = double(M) / m;
    for (int32_t i = first; i < first + m; ++i) cache.weigh(team, i, w, w);
  }

 private:
  KVR_FN int32_t middle(const auto& cache) const {
    const int32_t M = cache.size() - held_sinks(cache, sinks) - recent;
    return M > 0 ? M : 0;
  }
};

}  // namespace kvreplay
