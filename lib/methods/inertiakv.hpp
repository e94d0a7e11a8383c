#pragma once
#include "core/selecting.hpp"
#include "methods/parts/step_scores.hpp"

namespace kvreplay {

// InertiaKV, arXiv 2609.03515: a moving average of the attention that a token gets. `refresh` says how often it is
// computed.
//  1. End of the prompt: s = probabilities of the last row, summed over the group. A token without a value takes s as
//     its m; every other token gets m = alpha m + (1 - alpha) s.
//  2. Decode step t: the same with the step's row, if refresh = 1, or if (t-P) mod refresh = 0; with refresh 0 in the
//     first step alone. In all other steps nothing is computed.
//  3. Cut: the token of lowest m goes. Tokens without a value came in a step that was not computed. They stay while an
//     unprotected token with a value is held; among themselves the oldest goes.
// `refresh: 0` keeps every new token and drops the prompt one by one: after B steps it is a window.
struct InertiaKv : Selecting<> {
  static constexpr MethodInfo info{
      .name = "inertiakv",
      .title = "moving average of attention, refreshed every few steps",
      .source = "InertiaKV, arXiv 2609.03515, as a summary gives its formulas and defaults",
      .tier = 3,
      .memory = "B tokens, one average each",
      .deviation =
          "the paper's text and code were not at hand. A new token starts at its own probability, so alpha 0 is tova. "
          "Step 3 and the sum over the group are choices. The code is said to carry one state through the layers in "
          "turn; here each layer has its own.",
      .selects = true,
  };
  static constexpr Hooks hooks{"read_prompt evict observe layout needs protection voters"};
  double alpha = 0.8;
  int32_t refresh = 1;
  int32_t prompt = 0;
  int32_t computed = -1;  // the last row that was computed; later tokens have no value

  static void declare(auto& d) {
    d.real("alpha", &InertiaKv::alpha, {0, 1}, "share of the old average, below 1; 0 is tova");
    d.integer("refresh", &InertiaKv::refresh, {0, kManyTokens},
              "steps from one computed row to the next (lazy: 4); 0: the first step only");
    protect<InertiaKv>(d);
  }
  void resolve(const MethodContext& context) {
    if (alpha == 1) throw ParameterError("alpha", "alpha 1 never takes a row into the average; give less than 1");
    prompt = context.prompt_tokens;
    Selecting::resolve(context);
  }
  PromptNeeds needs(const MethodContext& context) const { return {.column_sums_from = context.prompt_tokens - 1}; }
  double voters(const MethodContext& context) const {
    return context.aggregate == Aggregate::sum ? context.shape.heads : 1;
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& all, BasicCache<Real>& cache) {
    accumulate_prompt(team, all, cache);  // the sums cover the last row alone
    computed = all.size() - 1;
  }
  void observe(const Team auto& team, Cache auto& cache, std::span<const double> p) {
    const int32_t t = cache.token(cache.size() - 1);
    if (!is_computed(t)) return;
    team.each(cache.size(), [&](int32_t i) {
      double& m = cache.score(i);
      m = has_value(cache, i) ? alpha * m + (1 - alpha) * p[size_t(i)] : p[size_t(i)];
    });
    computed = t;
  }
  void evict(const Team auto& team, Cache auto& cache) {
    // Averages are at most the number of query heads.
    const double above_all = cache.shape().heads + 1.0;
    cut(
        team, cache, plan, [&](int32_t) { return protection(); },
        [&](int32_t i) { return has_value(cache, i) ? cache.score(i) : above_all + cache.token(i); });
  }

 private:
  bool has_value(const auto& cache, int32_t row) const { return cache.token(row) <= computed; }
  // In a prompt that arrives in pieces the last row of each is computed.
  bool is_computed(int32_t t) const {
    if (t < prompt) return plan.is_due(t);
    if (refresh == 1) return true;
    return refresh == 0 ? t == prompt : (t - prompt) % refresh == 0;
  }
};

}  // namespace kvreplay
