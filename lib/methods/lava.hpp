#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/selecting.hpp"
#include "core/share.hpp"

namespace kvreplay {

// LAVa, 2025, section 4: a budget of the model goes to layers by the entropy of their scores, and to heads by the
// scores themselves.
//  1. Per query head: a[j] = mean over rows P-w..P-1 of x_row(j), for prefix tokens j < P-w; max pool of `kernel`,
//     times the largest ||v||_1 of the prefix. s = maximum over the group.
//  2. Entropy of a layer: e = -sum x ln x / ln(size), x = the scores of all its heads divided by their sum.
//  3. base = floor((B-w) * layers * e / sum of e) tokens per head of a layer.
//  4. c = how many of the top base * heads scores of the layer belong to the head. Capacity of the head =
//     round(c (1-floor) + floor(base floor)), halves to even.
//  5. Each head keeps its top capacity and the window; later tokens are kept.
struct Lava : Selecting<> {
  static constexpr MethodInfo info{
      .name = "lava",
      .title = "a model's budget shared over layers by entropy and over heads by votes",
      .source = "LAVa, arXiv 2509.09754, section 4 (as its release runs it)",
      .tier = 2,
      .memory = "the head's share of B * kv heads * layers prompt tokens, and every later one",
      .deviation =
          "shares are fixed before the replay, while the release cuts earlier layers again and again during the "
          "prompt, which ends in the same sets. The release's floor is that of the equal budget, through a misspelt "
          "name; here it is the layer's. The default of floor is Ada-KV's. Each head is rounded by itself: "
          "allocated_excess in extras is the sum of what that misses.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .layer_level = false,
      .exact_budget = false,
      .shared_over = SharedOver::model,
  };
  static constexpr Hooks hooks{"read_prompt evict layout needs traits protection share state"};
  int32_t window = 32, kernel = 7;
  double floor = 0.2;
  std::span<double> state;  // [P] votes of one query head

  static void declare(auto& d) {
    d.integer("window", &Lava::window, {1, kManyTokens}, "observation window, prompt rows that vote and stay");
    d.integer("kernel", &Lava::kernel, {1, kManyTokens}, "pooling width in tokens, odd; 1 = no pooling");
    d.real("floor", &Lava::floor, {0, 1}, "share of a layer's budget that is equal for its heads");
    protect<Lava>(d);
  }
  void resolve(const MethodContext& context) {
    Selecting::resolve(context);
    if (kernel % 2 == 0) throw even_kernel_error(kernel);
    if (window > budget && budget < context.prompt_tokens) throw window_error(window, budget);
  }
  void traits(Traits& t) const { t.share_reads_scores = true; }
  Layout layout(const MethodContext& context) const { return {.state_doubles = context.prompt_tokens, .scores = true}; }
  PromptNeeds needs(const MethodContext& context) const {
    return {.column_sums_from = context.prompt_tokens > window ? context.prompt_tokens - window : 0};
  }
  Protect protection() const { return both({sinks, recent}, {.recent = window}); }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const int32_t prefix = cache.size() - window;
    if (prefix <= 0) return;
    const double most = largest_value(prompt, cache, prefix);
    for (int32_t h = 0; h < prompt.shape().heads; ++h) {
      team.each(prefix, [&](int32_t j) { state[size_t(j)] = prompt.column_sum(cache.token(j), h) / window; });
      team.each(prefix, [&](int32_t j) {
        const double s = largest_near(state.data(), j, prefix, kernel) * most;
        cache.score(j) = h == 0 || s > cache.score(j) ? s : cache.score(j);
      });
    }
  }
  void evict(const Team auto& team, Cache auto& cache) { keep_scored(team, cache, protection(), budget); }

  std::vector<int32_t> share(const MethodContext& context, const std::vector<HeadScores>& heads) const {
    std::vector<std::vector<HeadScores>> layers;
    for (const HeadScores& head : heads) {
      if (layers.empty() || layers.back().front().layer != head.layer) layers.emplace_back();
      layers.back().push_back(head);
      std::erase(layers.back().back().scores, double(INFINITY));
    }
    std::vector<double> entropies;
    for (const auto& layer : layers) entropies.push_back(entropy(layer));
    std::vector<int32_t> tokens;
    for (size_t l = 0; l < layers.size(); ++l)
      for (const int32_t capacity : capacities(layers[l], base(entropies, l, context.budget.tokens)))
        tokens.push_back(std::min(window + capacity, context.prompt_tokens));
    return tokens;
  }

  // Step 2. 0 if there is nothing to choose from.
  static double entropy(const std::vector<HeadScores>& layer) {
    double sum = 0, e = 0;
    size_t size = 0;
    for (const HeadScores& head : layer)
      sum += std::accumulate(head.scores.begin(), head.scores.end(), 0.0), size += head.scores.size();
    if (size < 2 || !(sum > 0)) return 0;
    for (const HeadScores& head : layer)
      for (const double s : head.scores) e -= s > 0 ? s / sum * std::log(s / sum) : 0;
    return e / std::log(double(size));
  }
  // Step 3. Equal for all layers if no layer has any entropy.
  int32_t base(const std::vector<double>& entropies, size_t layer, int32_t tokens) const {
    const double sum = std::accumulate(entropies.begin(), entropies.end(), 0.0);
    const double total = double(tokens - window) * double(entropies.size());
    return int32_t(std::floor((sum > 0 ? total * entropies[layer] / sum : tokens - window) + 1e-9));
  }

 private:
  template <class Real>
  static double largest_value(const Prompt<Real>& prompt, const BasicCache<Real>& cache, int32_t prefix) {
    double most = 0;
    for (int32_t j = 0; j < prefix; ++j) {
      double sum = 0;
      for (const Real x : prompt.value(cache.token(j))) sum += std::abs(double(x));
      most = std::max(most, sum);
    }
    return most;
  }
  // Step 4 for the heads of a layer.
  std::vector<int32_t> capacities(const std::vector<HeadScores>& layer, int32_t base) const {
    std::vector<std::vector<double>> scores;
    for (const HeadScores& head : layer) scores.push_back(head.scores);
    std::vector<int32_t> tokens = winners(scores, int64_t(base) * int64_t(layer.size()));
    for (int32_t& c : tokens) c = int32_t(std::nearbyint(c * (1 - floor) + std::floor(base * floor)));
    return tokens;
  }
};

}  // namespace kvreplay
