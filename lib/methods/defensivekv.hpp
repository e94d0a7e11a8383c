#pragma once
#include "methods/parts/joint_cut.hpp"

namespace kvreplay {

// DefensiveKV, 2025, section 4: the worst case of an observation window decides, and a floor bounds what a token can
// lose. w window rows P-w..P-1, prefix tokens j < P-w.
//  1. p = probabilities of the window's rows. The window's keys are in the softmax.
//  2. Per query head and row: average pool of `kernel` over the prefix (divisor kernel), scaled back to the row's sum.
//  3. s_j = maximum over the group and the rows, at least the mean of s over j.
//  4. N_j = mean over the group of ||v_j W_h||_1. s_j is multiplied by N_j / (sum of N_j over the layer's kv heads).
//  5. a_j = mean over the group and the rows of the unpooled p, divided by its sum. b = the mass of p on the last w
//     prefix tokens, mean over the layer's heads and rows. k = how many tokens, by descending a, precede the first
//     whose running sum reaches mass - b; at most B - w. These k get the largest s of the layer.
//  6. The window gets it, too.
//  7. The top B * heads over the layer's kv heads stay (ties: head, token). `level: model`: over all recorded layers,
//     the windows first.
// Step 4 divides by the sum over heads, not over tokens, and b leaves out the window: both are the release's.
struct DefensiveKv : JointCut {
  static constexpr MethodInfo info{
      .name = "defensivekv",
      .title = "the largest vote of a window, with a floor, weighted by projected values",
      .source = "DefensiveKV, arXiv 2510.13334, section 4 (as its release runs it)",
      .tier = 2,
      .memory = "the head's share of B * kv heads prompt tokens, and every later one",
      .deviation =
          "level model keeps all windows, while the release pads each layer with its own maximum, so that a weak layer "
          "can lose its window.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .layer_level = false,
      .shared_over = SharedOver::layer,
  };
  static constexpr Hooks hooks = Hooks{"observe_prompt read_prompt layout needs state"} + joint_hooks;
  enum class Level { layer, model };
  int32_t window = 32, kernel = 5;
  double mass = 0.9;
  Level level = Level::layer;
  double bias = 0;          // b of this kv head
  std::span<double> state;  // [P] each: s, a, N, one row's pooled probabilities

  static void declare(auto& d) {
    d.integer("window", &DefensiveKv::window, {1, kManyTokens}, "observation window, prompt rows that vote and stay");
    d.integer("kernel", &DefensiveKv::kernel, {1, kManyTokens}, "pooling width in tokens, odd; 1 = no pooling");
    d.real("mass", &DefensiveKv::mass, {0, 1}, "share of the votes whose tokens are safe in every head");
    d.choice("level", &DefensiveKv::level, {"layer", "model"},
             "scores that compete: of a layer, or of all recorded layers");
    protect<DefensiveKv>(d);
  }
  void resolve(const MethodContext& context) {
    JointCut::resolve(context);
    if (kernel % 2 == 0) throw even_kernel_error(kernel);
    if (window > budget && budget < prompt) throw window_error(window, budget);
  }
  void traits(Traits& t) const {
    JointCut::traits(t);
    t.shared_over = level == Level::layer ? SharedOver::layer : SharedOver::model;
  }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = 4 * int64_t(context.prompt_tokens), .scores = true};
  }
  PromptNeeds needs(const MethodContext& context) const {
    return {.rows_from = std::max(0, context.prompt_tokens - window), .output_norms = true};
  }

  void observe_prompt(const Team auto& team, int32_t, HeadProbabilities x) {
    const int32_t prefix = prompt - window;
    if (has_cut() || prefix <= 0) return;
    const std::span<double> s = part(0), a = part(1), pooled = part(3);
    for (int32_t h = 0; h < x.heads; ++h) {
      team.each(prefix, [&](int32_t j) { pooled[size_t(j)] = average_near(x, h, j, prefix); });
      const double sum = team.sum(prefix, [&](int32_t j) { return x(h, j); });
      const double left = team.sum(prefix, [&](int32_t j) { return pooled[size_t(j)]; });
      team.each(prefix, [&](int32_t j) {
        const double scaled = left > 0 ? pooled[size_t(j)] * (sum / left) : 0;
        s[size_t(j)] = scaled > s[size_t(j)] ? scaled : s[size_t(j)];
        a[size_t(j)] += x(h, j) / (x.heads * window);
      });
      const int32_t last = window < prefix ? window : prefix;
      bias += team.sum(last, [&](int32_t j) { return x(h, prefix - last + j); }) / (x.heads * window);
    }
  }
  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& text, BasicCache<Real>& cache) {
    const int32_t prefix = cache.size() - window, heads = text.shape().heads;
    if (has_cut() || prefix <= 0) return;
    const std::span<double> s = part(0), norms = part(2);
    const auto vote = [&](int32_t i) { return s[size_t(cache.token(i))]; };
    const double mean = team.sum(prefix, vote) / prefix;
    team.each(prefix, [&](int32_t i) { cache.score(i) = vote(i) > mean ? vote(i) : mean; });
    for (int32_t h = 0; h < heads; ++h)
      team.each(prompt, [&](int32_t j) { norms[size_t(j)] += text.output_sum(h, j) / heads; });
  }

  // Budget and b; then a and N of every token.
  void head_scores(std::vector<double>& says) const {
    says = {double(budget), bias};
    for (const size_t which : {1, 2}) says.insert(says.end(), part(which).begin(), part(which).end());
  }
  std::vector<Rows> cut_together(const std::vector<HeadScores>& heads) const {
    std::vector<std::vector<double>> scores;
    for (const HeadScores& head : heads) scores.push_back(head.scores);
    for (const auto& layer : by_layer(heads)) {
      weigh(heads, layer, scores);
      secure(heads, layer, scores);
    }
    protect_rows(heads, scores);
    return best_of_all(scores, int64_t(heads.front().extras.at(0)) * int64_t(heads.size()));
  }
  // Step 5: how many tokens are safe. a: descending.
  static int32_t safe_tokens(const std::vector<double>& a, double mass, int32_t most) {
    const double all = std::accumulate(a.begin(), a.end(), 0.0);
    double sum = 0;
    int32_t k = 0;
    for (const double x : a) {
      sum += all > 0 ? x / all : 0;
      if (k >= most || sum >= mass) break;
      ++k;
    }
    return k;
  }

 private:
  std::span<double> part(size_t which) const {
    const size_t size = state.size() / 4;
    return state.subspan(which * size, size);
  }
  double average_near(const HeadProbabilities& x, int32_t h, int32_t j, int32_t prefix) const {
    double sum = 0;
    for (int32_t i = j - kernel / 2; i <= j + kernel / 2; ++i) sum += i >= 0 && i < prefix ? x(h, i) : 0;
    return sum / kernel;
  }
  // a (0) or N (1) of a row that a head said.
  static double said(const HeadScores& head, size_t which, size_t row) {
    const size_t tokens = (head.extras.size() - 2) / 2;
    return head.extras[2 + which * tokens + size_t(head.tokens[row])];
  }
  size_t prefix_of(const HeadScores& head) const { return head.scores.size() - size_t(window); }
  // Step 4.
  void weigh(const std::vector<HeadScores>& heads, const std::vector<size_t>& layer,
             std::vector<std::vector<double>>& scores) const {
    for (size_t j = 0; j < prefix_of(heads[layer.front()]); ++j) {
      double sum = 0;
      for (const size_t head : layer) sum += said(heads[head], 1, j);
      for (const size_t head : layer)
        scores[head][j] *= sum > 0 ? said(heads[head], 1, j) / sum : 1 / double(layer.size());
    }
  }
  // Steps 5 and 6.
  void secure(const std::vector<HeadScores>& heads, const std::vector<size_t>& layer,
              std::vector<std::vector<double>>& scores) const {
    double most = 0, b = 0;
    for (const size_t head : layer) {
      most = std::max(most, *std::max_element(scores[head].begin(), scores[head].end()));
      b += heads[head].extras.at(1) / double(layer.size());
    }
    for (const size_t head : layer) {
      std::vector<double> a;
      for (size_t j = 0; j < prefix_of(heads[head]); ++j) a.push_back(said(heads[head], 0, j));
      const Rows order = order_of(a);
      std::sort(a.begin(), a.end(), std::greater<>());
      const int32_t k = safe_tokens(a, mass - b, int32_t(heads[head].extras.at(0)) - window);
      for (int32_t r = 0; r < k; ++r) scores[head][size_t(order[size_t(r)])] = most;
      std::fill(scores[head].end() - window, scores[head].end(), level == Level::model ? double(INFINITY) : most);
    }
  }
};

}  // namespace kvreplay
