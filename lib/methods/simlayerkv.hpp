#pragma once
#include "core/policy.hpp"
#include "core/share.hpp"

namespace kvreplay {

// SimLayerKV, Zhang et al. 2024, section 4: a layer that looks at the first and the newest tokens alone is lazy and
// streams; the other layers keep everything.
//  1. p_j = mean over the last `last` prompt rows and all query heads of the layer of x_row(j), for tokens
//     j < P - last. The rows' own keys are in the softmax, not among these tokens.
//  2. score = sum of p over the first `sinks` and the last `recent` of these tokens.
//  3. The layer is lazy if score > threshold and P > sinks + recent + last. It then holds the first `sinks` and the
//     newest `recent` tokens at every step; with phase oneshot, at the end of the prompt.
struct SimLayerKv {
  static constexpr MethodInfo info{
      .name = "simlayerkv",
      .title = "lazy layers stream, the others keep all tokens",
      .source = "SimLayerKV, Zhang et al. 2024, section 4",
      .tier = 2,
      .memory = "sinks + recent tokens in lazy layers, everything in the others",
      .deviation =
          "kvpress keeps recent - last tokens beside the sinks, and its default threshold of 1 makes no layer lazy. "
          "The published thresholds are .9 for Llama 3, .65 for Llama 2, .8 for Mistral and .85 for Qwen.",
      .layer_level = false,
      .takes_budget = false,
      .shared_over = SharedOver::layer,
  };
  static constexpr Hooks hooks{"read_prompt evict report layout needs protection share head_scores"};
  int32_t sinks = 4, recent = 1024, last = 1;
  double threshold = 0.9;
  int32_t tokens = 0, budget = 0;  // budget: most tokens of this head; 0: not known yet
  double seen = 0;                 // this head's part of the score, mean over its query heads

  static void declare(auto& d) {
    d.integer("sinks", &SimLayerKv::sinks, {0, kManyTokens}, "first tokens of a lazy layer");
    d.integer("recent", &SimLayerKv::recent, {1, kManyTokens}, "last tokens of a lazy layer, the newest included");
    d.integer("last", &SimLayerKv::last, {1, kManyTokens}, "last prompt rows whose attention is looked at");
    d.real("threshold", &SimLayerKv::threshold, {0, 1}, "attention above which a layer is lazy");
  }
  void resolve(const MethodContext& context) { tokens = context.tokens, budget = context.budget.tokens; }
  Layout layout(const MethodContext&) const { return {.scores = true}; }
  PromptNeeds needs(const MethodContext& context) const {
    if (budget > 0 || context.prompt_tokens <= last) return {};
    return {.column_sums_from = context.prompt_tokens - last};
  }
  Protect protection() const { return {sinks, recent}; }
  void report(auto& extras, const auto&) const { extras["lazy"] = lazy() ? 1 : 0; }

  void head_scores(std::vector<double>& says) const { says = {seen}; }
  std::vector<int32_t> share(const MethodContext& context, const std::vector<HeadScores>& heads) const {
    double score = 0;
    for (const HeadScores& head : heads) score += head.extras.at(0) / double(heads.size());
    const bool is_lazy = score > threshold && context.prompt_tokens > sinks + recent + last;
    return std::vector<int32_t>(heads.size(), is_lazy ? sinks + recent : context.tokens);
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const int32_t before = prompt.size() - last, heads = prompt.shape().heads;
    if (budget > 0 || before <= 0) return;
    seen = team.sum(cache.size(), [&](int32_t i) {
      const int32_t j = cache.token(i);
      const bool counts = j < before && (j < sinks || j >= before - recent);
      if (!counts) return 0.0;
      return aggregate(Aggregate::mean, heads, [&](int32_t h) { return prompt.column_sum(j, h); }) / last;
    });
  }
  void evict(const Team auto& team, Cache auto& cache) {
    if (lazy()) keep_ends(team, cache, sinks, sinks + recent);
  }

 private:
  bool lazy() const { return budget > 0 && budget < tokens; }
};

}  // namespace kvreplay
