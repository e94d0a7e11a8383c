#pragma once
#include "core/selecting.hpp"
#include "methods/parts/step_scores.hpp"

namespace kvreplay {

// The ablation of H2O without a recent window: heavy hitters only.
//  1. A as in h2o: all causal rows of the prompt, then every decode step.
//  2. If more than B tokens are held: keep the newest, and the top B-1 by A of the others, so that the newest is not
//     evicted in its own step.
// `variant: strict`: the top B by A; the newest competes with the attention it paid to itself.
struct H2oHeavy : Selecting<0, kDerived> {
  static constexpr MethodInfo info{
      .name = "h2o_heavy",
      .title = "heavy hitters only",
      .source = "H2O, Zhang et al. 2023, ablation \"heavy hitters only\"",
      .tier = 1,
      .memory = "B tokens, one score each",
      .deviation =
          "the newest token is kept for its own step; the paper does not specify this (variant strict: it is not).",
      .selects = true,
  };
  static constexpr Hooks hooks{"read_prompt evict observe layout needs protection score_rule"};
  enum class Variant { newest, strict };
  Variant variant = Variant::newest;

  static void declare(auto& d) {
    d.choice("variant", &H2oHeavy::variant, {"default", "strict"}, "strict: the newest token is not protected");
    protect<H2oHeavy>(d, "1; strict: 0");
  }
  void resolve(const MethodContext& context) {
    if (recent == kDerived) recent = variant == Variant::strict ? 0 : 1;
    Selecting::resolve(context);
  }
  PromptNeeds needs(const MethodContext&) const { return {.column_sums_from = 0}; }
  std::optional<ScoreRule> score_rule() const {
    return ScoreRule{.carry = 1, .protect = protection(), .budget = budget, .plan = plan};
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    accumulate_prompt(team, prompt, cache);
  }
  void observe(const Team auto& team, Cache auto& cache, std::span<const double> p) { accumulate(team, cache, p); }
};

}  // namespace kvreplay
