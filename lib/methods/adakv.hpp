#pragma once
#include <numeric>

#include "core/share.hpp"
#include "methods/any_scorer.hpp"

namespace kvreplay {

// Ada-KV, Feng et al. 2024: a layer's budget goes to the kv heads with the largest scores.
//  1. In every kv head the top max(1, floor(B alpha)) tokens are safe, and so are the protected ones.
//  2. Over all scores of the layer keep the safe ones, then the largest others, until B per head are kept on average
//     (ties: score, head, token). Each head then holds its best tokens.
// Variant `reference`: base = B - w; c_g is the number of the layer's top base * heads unprotected scores that belong
// to head g. Each head's scores are scaled by the share of their mass in its top `base` (`normalise`). Head g keeps its
// top round(c_g (1-f) + floor(base f)) and the window.
// A scorer that scores all heads of a layer equally (tova, variant layer) leaves nothing to share and is refused.
struct AdaKv : Selecting<> {
  static constexpr MethodInfo info{
      .name = "adakv",
      .title = "a layer's budget shared over its kv heads",
      .source = "Ada-KV, Feng et al. 2024, Algorithm 1",
      .tier = 2,
      .memory = "the head's share of B * kv heads prompt tokens, and every later one",
      .deviation =
          "default is the later library's safeguard; variant reference mixes with an equal share, as the "
          "release does. Scores must be comparable between heads: probabilities are, ranks are not.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .shared_over = SharedOver::layer,
  };
  static constexpr Hooks hooks{"read_prompt evict layout needs protection share set_options state"};
  enum class Variant { kvpress, reference };
  Variant variant = Variant::kvpress;
  AnyScorer scorer;
  double alpha = 0.2, f = 0.2;
  bool normalise = true;
  std::span<double> state;  // the scorer's state

  static void declare(auto& d) {
    d.choice("variant", &AdaKv::variant, {"kvpress", "reference"}, "rule that shares the budget");
    d.scorer("scorer", &AdaKv::scorer, "one-shot scores, {name: ..., its parameters}");
    d.real("alpha", &AdaKv::alpha, {0, 1},
           "share of B, at least one token, that is safe in every head (variant kvpress)");
    d.boolean("normalise", &AdaKv::normalise, "scale each head by the share of its top mass (reference)");
    d.real("f", &AdaKv::f, {0, 1}, "share of the budget that is equal for all heads (reference)");
    protect<AdaKv>(d);
  }
  void resolve(MethodContext context) {
    Selecting::resolve(context);
    CommonOptions implied;
    scorer.set_options(implied);
    if (implied.gqa_level == GqaLevel::layer)
      throw ParameterError("scorer", std::string("with this variant ") + scorer.name() +
                                         " scores all kv heads of a layer alike, so that each would get the same "
                                         "budget: use the method " +
                                         scorer.name() + " itself, or leave out the scorer's variant");
    context.compares_heads = true;
    scorer.resolve(context);
  }
  static void set_options(const AdaKv& m, CommonOptions& options) {
    m.scorer.set_options(options);
    options.gqa_level = GqaLevel::kv;
  }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = scorer.state_doubles(context), .scores = true};
  }
  PromptNeeds needs(const MethodContext& context) const { return scorer.needs(context); }
  Protect protection() const { return both({sinks, recent}, scorer.protection()); }

  // Tokens of each head; a head is then replayed with this number as its budget.
  std::vector<int32_t> share(const MethodContext& context, const std::vector<HeadScores>& heads) const {
    if (variant == Variant::kvpress) return ada_tokens(heads, context.budget.tokens, alpha);
    const int32_t window = protected_tokens(heads.front()), base = context.budget.tokens - window;
    if (base <= 0) return std::vector<int32_t>(heads.size(), context.budget.tokens);
    std::vector<std::vector<double>> scores;
    for (const HeadScores& t : heads) scores.push_back(unprotected(t, base));
    std::vector<int32_t> tokens = winners(scores, int64_t(base) * int64_t(heads.size()));
    for (int32_t& c : tokens) c = window + int32_t(std::nearbyint(c * (1 - f) + std::floor(base * f)));
    return tokens;
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    scorer.bind(state);
    scorer.read_prompt(team, prompt, cache);
  }
  void evict(const Team auto& team, Cache auto& cache) { keep_scored(team, cache, protection(), budget); }

 private:
  std::vector<double> unprotected(const HeadScores& t, int32_t base) const {
    std::vector<double> scores;
    for (const double s : t.scores)
      if (s != INFINITY) scores.push_back(s);
    std::sort(scores.begin(), scores.end(), std::greater<>());
    const auto top = scores.begin() + std::min<int64_t>(base, int64_t(scores.size()));
    const double all = std::accumulate(scores.begin(), scores.end(), 0.0);
    const double share = std::accumulate(scores.begin(), top, 0.0) / (all == 0 ? 1 : all);
    for (double& s : scores) s *= normalise ? share : 1;
    return scores;
  }
};

}  // namespace kvreplay
