#pragma once
#include <numeric>

#include "core/selecting.hpp"
#include "core/share.hpp"

namespace kvreplay {

// CAKE, Qin et al. 2025: layers share one budget by the entropy and the variance of their attention.
//  1. Window rows as in SnapKV; per prefix token e = mean + gamma * variance over the w rows, average pool 5, mean over
//     the group.
//  2. Preference of a layer: H^(1/tau1) V^(1/tau2), H = -sum x ln(x + 1e-10) over heads, rows and prefix, V = sum of
//     the variances.
//  3. Layer budget = floor(preference share * (B-w) * layers), at most P-w. The excess goes to the layers below the
//     limit, one token each in turn, lower layers first. The remainder of the rounding is distributed in the same way,
//     so that all (B-w) * layers are spent.
//  4. Keep the top of e in the layer's budget, and the window.
struct Cake : Selecting<> {
  static constexpr MethodInfo info{
      .name = "cake",
      .title = "a model's budget shared over its layers; tokens by mean and variance of a window's votes",
      .source = "CAKE, Qin et al. 2025, section 4",
      .tier = 2,
      .memory = "the layer's share of B * layers prompt tokens per kv head, and every later one",
      .deviation =
          "only the layers that the trace holds share the budget, and the shares are fixed before the "
          "replay instead of layer by layer during the prompt",
      .streams = false,
      .default_phase = Phase::oneshot,
      .shared_over = SharedOver::model,
  };
  static constexpr Hooks hooks{
      "observe_prompt read_prompt evict layout needs protection share head_scores set_options state"};
  static constexpr int32_t kPool = 5;
  int32_t window = 32;
  double gamma = 200, tau1 = 1, tau2 = 1;
  int32_t prompt_tokens = 0;
  double entropy = 0;       // H of this cache
  std::span<double> state;  // [heads, P] each: mean, sum of squared deviations, pooled e

  static void declare(auto& d) {
    d.integer("w", &Cake::window, {2, kManyTokens}, "observation window, prompt rows that vote and stay");
    d.real("gamma", &Cake::gamma, {0, 1e9}, "weight of the variance in a token's score");
    d.real("tau1", &Cake::tau1, {1e-6, 1e6}, "temperature of the entropy in a layer's preference");
    d.real("tau2", &Cake::tau2, {1e-6, 1e6}, "temperature of the variance");
    protect<Cake>(d);
  }
  void resolve(const MethodContext& context) {
    Selecting::resolve(context);
    prompt_tokens = context.prompt_tokens;
    if (window >= budget && budget < context.prompt_tokens)
      throw ParameterError("w", "w " + std::to_string(window) + " leaves nothing of the budget of " +
                                    std::to_string(budget) + " to choose; make it smaller or the budget larger");
  }
  static void set_options(const Cake&, CommonOptions& options) { options.gqa_aggregate = Aggregate::mean; }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = int64_t(3) * context.shape.heads * context.prompt_tokens, .scores = true};
  }
  PromptNeeds needs(const MethodContext& context) const {
    return {.rows_from = context.prompt_tokens > window ? context.prompt_tokens - window : 0};
  }
  Protect protection() const { return both({sinks, recent}, {.recent = window}); }

  void observe_prompt(const Team auto& team, int32_t t, HeadProbabilities x) {
    const int32_t prefix = prompt_tokens - window, seen = t - prefix + 1;
    if (prefix <= 0) return;
    for (int32_t h = 0; h < x.heads; ++h) {
      double *mean = part(0, h), *squares = part(x.heads, h);
      team.each(prefix, [&](int32_t i) {  // Welford
        const double from = x(h, i) - mean[i];
        mean[i] += from / seen;
        squares[i] += from * (x(h, i) - mean[i]);
      });
      entropy -= team.sum(prefix, [&](int32_t i) { return x(h, i) * std::log(x(h, i) + 1e-10); });
    }
  }
  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const int32_t prefix = cache.size() - window, heads = prompt.shape().heads;
    if (prefix <= 0) return;
    const auto e = [&](int32_t h, int32_t j) {
      const int32_t i = cache.token(j);
      return part(0, h)[i] + gamma * part(heads, h)[i] / (window - 1);
    };
    for (int32_t h = 0; h < heads; ++h)
      team.each(prefix, [&](int32_t j) {
        double sum = 0;
        for (int32_t i = j - kPool / 2; i <= j + kPool / 2; ++i) sum += i >= 0 && i < prefix ? e(h, i) : 0;
        part(2 * heads, h)[j] = sum / kPool;
      });
    team.each(prefix, [&](int32_t j) {
      cache.score(j) = aggregate(prompt.how(), part(2 * heads, 0) + j, prompt_tokens, heads);
    });
  }
  void evict(const Team auto& team, Cache auto& cache) { keep_scored(team, cache, protection(), budget); }

  void head_scores(std::vector<double>& says) const {
    double variance = 0;
    const size_t cells = state.size() / 3;
    for (size_t i = cells; i < 2 * cells; ++i) variance += state[i] / (window - 1);
    says = {entropy, variance};
  }
  std::vector<int32_t> share(const MethodContext& context, const std::vector<HeadScores>& heads) const {
    std::vector<int32_t> layer_of, tokens;
    const std::vector<double> shares = preferences(heads, layer_of);
    for (const double s : shares)
      tokens.push_back(int32_t(std::min(s * (context.budget.tokens - window) * double(shares.size()), kManyTokens)));
    spend(tokens, int64_t(context.budget.tokens - window) * int64_t(shares.size()), context.prompt_tokens - window);
    std::vector<int32_t> of_heads;
    for (const int32_t at : layer_of) of_heads.push_back(tokens[size_t(at)] + window);
    return of_heads;
  }

 private:
  double* part(int32_t first, int32_t head) const { return state.data() + int64_t(first + head) * prompt_tokens; }
  // Preferences of layers, summing to 1 (equal if they are not positive and finite); layer_of: each head's layer.
  std::vector<double> preferences(const std::vector<HeadScores>& heads, std::vector<int32_t>& layer_of) const {
    std::vector<double> H, V, shares;
    for (size_t i = 0; i < heads.size(); ++i) {
      if (i == 0 || heads[i].layer != heads[i - 1].layer) H.push_back(0), V.push_back(0);
      layer_of.push_back(int32_t(H.size()) - 1);
      H.back() += heads[i].extras.at(0), V.back() += heads[i].extras.at(1);
    }
    long double sum = 0;  // small temperatures exceed the range of a double
    const auto preference = [&](size_t l) {
      return std::pow((long double)(std::max(H[l], 0.0)), 1 / tau1) * std::pow((long double)(V[l]), 1 / tau2);
    };
    for (size_t l = 0; l < H.size(); ++l) sum += preference(l);
    const bool tells = sum > 0 && std::isfinite(sum);
    for (size_t l = 0; l < H.size(); ++l) shares.push_back(tells ? double(preference(l) / sum) : 1 / double(H.size()));
    return shares;
  }
  // Step 3: applies the limit and distributes the rest.
  static void spend(std::vector<int32_t>& tokens, int64_t total, int32_t most) {
    int64_t excess = 0;
    for (int32_t& t : tokens) excess += std::max(0, t - most), t = std::min(t, most);
    hand_out(tokens, excess, most);
    hand_out(tokens, total - std::accumulate(tokens.begin(), tokens.end(), int64_t{0}), most);
  }
  static void hand_out(std::vector<int32_t>& tokens, int64_t more, int32_t most) {
    while (more > 0 && *std::min_element(tokens.begin(), tokens.end()) < most)
      for (int32_t& t : tokens)
        if (t < most && more > 0) ++t, --more;
  }
};

}  // namespace kvreplay
