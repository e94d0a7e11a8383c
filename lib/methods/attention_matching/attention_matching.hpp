#pragma once
#include "core/policy.hpp"
#include "methods/attention_matching/attention_fit.hpp"

namespace kvreplay {

// Attention matching, the variant by highest attention keys: B keys of the prompt, with masses and values fitted so
// that attention over them reproduces attention over all prompt tokens.
//  1. Training queries: the prompt's queries, rotated to positions P..P+511, so that they look back on the prompt.
//  2. Score of a key: root mean square over the queries of its attention probability; the top B stay.
//  3. Masses w: ridge least squares of E_S w to the row sums of E, clipped to exp(+-clip), then 2 projected gradient
//     steps with step 1 / largest eigenvalue. E = exp(l - row maximum).
//  4. Values C: ridge least squares of softmax(l_S + ln w) C to the exact outputs.
//  5. Store (k, ln w, C). Later tokens are kept.
// Unmodified prompt queries attend to their own future, and training on them fails: `train: prompt` shows it.
struct AttentionMatching {
  static constexpr MethodInfo info{
      .name = "attention_matching",
      .title = "fitted masses and values on the highest attention keys",
      .source = "attention-matching compaction, highest attention keys",
      .tier = 3,
      .memory = "B prompt tokens and every later one, one bias a prompt token",
      .deviation = "values are fitted with ridge * trace / B. train: future sees the future and is for analyses only.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .any_positions = false,
      .layer_level = false,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{"read_prompt extra_bytes report layout needs failure_text state"};
  double ridge = 1e-4, clip = 3;
  TrainOn train = TrainOn::reroped;
  int32_t max_queries = 50000;
  int32_t budget = 0;
  std::span<double> state;  // error on the training queries, then the state of the fit

  static void declare(auto& d) {
    d.real("ridge", &AttentionMatching::ridge, {0, 1e300}, "regularisation, relative to the mean diagonal");
    d.real("clip", &AttentionMatching::clip, {1e-300, 700}, "largest absolute bias");
    d.choice("train", &AttentionMatching::train, {"reroped", "prompt", "future"},
             "queries that are matched: the prompt's at later positions or as they are; the decode rows' "
             "(sees the future, analysis only)");
    d.integer("max_queries", &AttentionMatching::max_queries, {1, kManyTokens},
              "most training queries; if there are more, every n-th is used");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens;
    if (train == TrainOn::future && context.tokens == context.prompt_tokens)
      throw ParameterError("train", "there is no row after the prompt to train on; use reroped");
  }
  PromptNeeds needs(const MethodContext&) const {
    return {.queries = true, .future_queries = train == TrainOn::future, .rotary = train == TrainOn::reroped};
  }
  Layout layout(const MethodContext& context) const {
    if (context.prompt_tokens <= budget) return {.state_doubles = 1};
    const int32_t rows = train == TrainOn::future ? context.tokens - context.prompt_tokens : context.prompt_tokens;
    const int64_t N = TrainingQueries<float>::count(int64_t(context.shape.heads) * rows, max_queries);
    const HeadShape& s = context.shape;
    return {.state_doubles = 1 + AttentionFit<float>::doubles(N, context.prompt_tokens, budget, s.dim, s.v_dim),
            .scores = true,
            .weights = true,
            .own_rows = budget};
  }
  void extra_bytes(ExtraBytes& c, const auto& cache) const { c.weight_floats = cache.evictions() > 0 ? budget : 0; }
  void report(auto& extras, const auto& cache) const {
    if (cache.evictions() > 0) extras["train_error"] = state[0];
  }
  static std::string failure_text(int32_t what, int32_t) {
    return std::string("the ") + (what == 1 ? "masses" : "values") +
           " have no unique least-squares solution; set a larger ridge";
  }

  // The cut is made here, because the queries are available only here.
  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    if (cache.size() <= budget) return;
    const AttentionFit<Real> fit({prompt, train, max_queries}, cache, budget, state.data() + 1);
    team.each(cache.size(), [&](int32_t j) { cache.score(j) = 0; });
    fit.watch(team, [&](int32_t j, double p) { cache.score(j) += p * p / fit.N; });
    team.each(cache.size(), [&](int32_t j) { cache.score(j) = std::sqrt(cache.score(j)); });
    keep_best(team, cache, {}, budget, [&](int32_t j) { return cache.score(j); });
    if (!fit.fit_masses(team, ridge, clip, 2)) return cache.fail(1, 0);
    if (!fit.fit_values(team, ridge)) return cache.fail(2, 0);
    const double error = fit.error(team);
    state[0] = error;
    for (int32_t j = 0; j < budget; ++j) {
      const auto key = cache.key(j);
      cache.rewrite(
          team, j, [&](int32_t, int32_t c) { return key[size_t(c)]; },
          [&](int32_t, int32_t c) { return Real(fit.value(j)[size_t(c)]); });
      cache.weigh(j, fit.mass(j), fit.mass(j));
    }
  }
};

}  // namespace kvreplay
