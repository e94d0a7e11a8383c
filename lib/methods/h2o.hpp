#pragma once
#include "core/policy.hpp"

namespace kvreplay {

// H2O, Zhang et al. 2023, Algorithm 1 and section 4: the recent half of the budget, and the heavy
// hitters by accumulated attention among the rest.
//  1. Prompt: A[j] = sum over all P causal rows and the group of x_i(j).
//  2. Decode: append; A[i] += p_t(i) for every resident i, the newest included.
//  3. If more than heavy + recent tokens are held: keep the last `recent` and the top `heavy` by A.
//  4. An evicted token loses its score for good; survivors keep theirs, without decay.
// `variant: observed` (the "observed attention" of later libraries): one cut after the prompt by the mean
// over the rows that saw a token instead of the sum, without a recent window; later tokens are kept.
struct H2o {
  static constexpr MethodInfo info{
      .name = "h2o",
      .title = "heavy hitters + recent window",
      .source = "H2O, Zhang et al. 2023, section 4 (the released real-drop class)",
      .tier = 1,
      .memory = "heavy + recent tokens, one score each",
      .deviation =
          "follows the released code, which protects recent tokens and lets the prompt's rows vote at full "
          "weight; the paper's Algorithm 1 protects nothing. Scores of grouped query heads are summed "
          "(the release knows no groups) and kept in double precision.",
  };
  enum class Variant { real_drop, observed };
  Variant variant = Variant::real_drop;
  double recent_frac = 0.5;
  int32_t heavy = kDerived, recent = kDerived;
  int32_t budget = 0;

  static void declare(auto& d) {
    d.choice("variant", &H2o::variant, {"real_drop", "observed"}, "which released rule");
    d.real("recent_frac", &H2o::recent_frac, {0, 1}, "share of the budget that is the recent window");
    d.integer("heavy", &H2o::heavy, {0, kManyTokens}, "heavy hitters, tokens",
              "floor((1 - recent_frac) * B + 1e-9)");
    d.integer("recent", &H2o::recent, {0, kManyTokens}, "recent window, tokens", "B - heavy");
  }
  void resolve(const Scene& scene) {
    budget = scene.budget;
    if (variant == Variant::observed) {
      if (heavy == kDerived) heavy = budget;
      if (scene.phase == Phase::stream)
        throw ParameterError("variant", "variant observed cuts once; it runs with `phase: oneshot` only");
    }
    if (heavy == kDerived)
      heavy = recent == kDerived ? int32_t((1 - recent_frac) * budget + 1e-9) : budget - recent;
    if (recent == kDerived) recent = budget - heavy;
    if (heavy < 0 || recent < 0 || heavy + recent != budget)
      throw ParameterError("heavy", "heavy " + std::to_string(heavy) + " + recent " + std::to_string(recent) +
                                        " is not the budget of " + std::to_string(budget) +
                                        "; leave one of them out, or make them add up");
  }
  static void set_axes(const H2o& m, Axes& axes) {
    if (m.variant == Variant::observed) axes.phase = Phase::oneshot;
  }
  Protect protection() const { return {.recent = recent}; }
  Layout layout(const Scene&) const { return {.scores = true}; }
  PromptNeeds needs(const Scene&) const { return {.column_sums_from = 0}; }

  template <class Real>
  KVR_FN void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const bool mean = variant == Variant::observed;
    team.each(cache.size(), [&](int32_t i) {
      const int32_t token = cache.token(i);
      cache.score(i) = prompt.column_sum(token) / (mean ? prompt.size() - token : 1);
    });
  }
  KVR_FN void observe(const Team auto& team, Cache auto& cache, std::span<const double> p) {
    team.each(cache.size(), [&](int32_t i) { cache.score(i) += p[size_t(i)]; });
  }
  KVR_FN void evict(const Team auto& team, Cache auto& cache) {
    if (cache.size() > heavy + recent)
      keep_best(team, cache, {.recent = recent}, heavy, [&](int32_t i) { return cache.score(i); });
  }
};

}  // namespace kvreplay
