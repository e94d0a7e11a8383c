#pragma once
#include "core/selecting.hpp"
#include "methods/parts/step_scores.hpp"

namespace kvreplay {

// TOVA, Oren et al. 2024 ("Transformers are multi-state RNNs"), section 3.2: evicts the token that the present query
// attends to least.
//  1. Score = this step's p_t, summed over the group; nothing is accumulated.
//  2. If more than B tokens are held, evict the smallest score; the newest is a candidate like any other.
//  3. End of the prompt: score = row P-1, keep the top B at once.
// `variant: layer` (kvpress): the mean over all heads of the layer decides for the whole layer, and the newest token
// always stays. `score` obc_value, obc_key or obc_joint: replaces p_t by the error of the row's output without the
// token (core/token.hpp).
struct Tova : Selecting<> {
  static constexpr MethodInfo info{
      .name = "tova",
      .title = "evicts the token least attended to by the present query",
      .source = "TOVA, Oren et al. 2024, section 3.2",
      .tier = 2,
      .memory = "B tokens; the score of a step is not kept",
      .deviation =
          "one set per kv head by the sum over its query heads; the paper's set for a whole layer is "
          "variant layer.",
      .selects = true,
  };
  static constexpr Hooks hooks{"read_prompt evict observe layout needs protection score_rule voters set_options state"};
  enum class Variant { standard, layer, kvpress };
  Variant variant = Variant::standard;
  TokenScore score = TokenScore::attention;
  std::span<double> state;  // the outputs of a step, for scores that use them

  static void declare(auto& d) {
    d.choice("variant", &Tova::variant, {"default", "layer", "kvpress"},
             "a set for each kv head, or one for the layer (kvpress is another name of layer)");
    d.choice("score", &Tova::score, kTokenScores,
             "score that a row adds to a token: its probability, or the error of the output without it");
    protect<Tova>(d);
  }
  void resolve(const MethodContext& context) {
    if (variant != Variant::standard && recent == 0) recent = 1;
    Selecting::resolve(context);
  }
  static void set_options(const Tova& m, CommonOptions& options) {
    if (m.variant == Variant::standard) return;
    options.gqa_level = GqaLevel::layer;
    options.gqa_aggregate = Aggregate::mean;
  }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = StepScores::state_doubles(score, context.shape), .scores = true};
  }
  PromptNeeds needs(const MethodContext& context) const {
    return {.column_sums_from = context.prompt_tokens - 1, .column_sums_of = score};
  }
  double voters(const MethodContext& context) const {
    return context.aggregate == Aggregate::sum ? context.shape.heads : 1;
  }
  std::optional<ScoreRule> score_rule() const {
    if (score != TokenScore::attention) return std::nullopt;
    return ScoreRule{.carry = 0, .protect = protection(), .budget = budget, .plan = plan};
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    accumulate_prompt(team, prompt, cache);
  }
  void observe(const Team auto& team, Cache auto& cache, HeadProbabilities p) {
    const StepScores given{score, p, state};
    given.open(team, cache);
    team.each(cache.size(), [&](int32_t i) { cache.score(i) = given(cache, i); });
  }
};

}  // namespace kvreplay
