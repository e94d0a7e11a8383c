#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

// How a budget is shared over kv heads and layers. Host code: allocation happens once, before the replay.

namespace kvreplay {

// The heads that share a budget or see each other's scores. head: a formula of the layer and kv head alone.
enum class SharedOver { none, head, layer, model };

// Scores and other numbers of one kv head from which a budget is shared.
struct HeadScores {
  int32_t layer = 0, kv_head = 0;
  std::vector<double> scores;        // [prompt tokens it could hold]; infinite where protected. Empty if a model's rule
                                     // needs no scores
  std::vector<double> extras;        // numbers from the policy's head_scores()
  std::vector<int32_t> tokens = {};  // tokens of the scores, where heads cut together
};

// Appends the mean of x[0..n) and the sum of squared deviations from it to a head's numbers.
inline void add_spread(std::vector<double>& says, const double* x, int32_t n) {
  double mean = 0, squares = 0;
  for (int32_t i = 0; i < n; ++i) mean += x[i] / n;
  for (int32_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  says.push_back(mean), says.push_back(squares);
}

// Standard deviation (divisor n - 1) of numbers of all heads together. In a head's `extras`, index `count` holds how
// many numbers it has, index `mean` their mean, and the next index the sum of squared deviations from it. 0 for a
// single number.
inline double deviation_over(const std::vector<HeadScores>& heads, size_t count, size_t mean) {
  double n = 0, centre = 0, squares = 0;
  for (const HeadScores& h : heads) n += h.extras[count], centre += h.extras[count] * h.extras[mean];
  if (n <= 1) return 0;
  centre /= n;
  for (const HeadScores& h : heads)
    squares += h.extras[mean + 1] + h.extras[count] * (h.extras[mean] - centre) * (h.extras[mean] - centre);
  return std::sqrt(squares / (n - 1));
}

// PyramidKV, Cai et al. 2024: tokens of layer `layer`, window included; `budget` is the mean over layers and may be a
// real number. Every layer gets the mean if the slope does not fit between window and prompt.
struct Pyramid {
  double budget, beta;
  int32_t window, prompt, layers;
  bool slopes() const { return layers > 1 && prompt >= most() && most() >= least() && least() >= window; }
  int32_t tokens(int32_t layer) const {
    const double step = slopes() ? (most() - least()) / (layers - 1) : 0;
    return int32_t(std::nearbyint(slopes() ? most() - layer * step : budget));
  }

 private:
  bool capped() const { return 2 * budget - budget / beta >= prompt - window; }
  double most() const { return capped() ? prompt - window : 2 * budget - budget / beta; }
  double least() const { return capped() ? 2 * budget - (prompt - window) : budget / beta; }
};

// One budget for two kinds of layers (allocator windows): a layer with a sliding window gets a share of it, and the
// layers without one divide the rest equally. `windowed` and `full` are numbers of kv heads.
struct WindowBudgets {
  double budget, share;
  int64_t windowed, full;
  int32_t window, prompt;  // the smallest window; prompt tokens, the most that a head can hold
  int32_t tokens(bool has_window) const {
    if (windowed == 0 || full == 0 || budget >= prompt) return int32_t(budget);
    const int64_t all = int64_t(budget) * (windowed + full);
    const int64_t least = std::min<int64_t>(int64_t(share * budget), window);
    const int64_t of_full = std::min<int64_t>((all - least * windowed) / full, prompt);
    return int32_t(has_window ? std::clamp<int64_t>((all - of_full * full) / windowed, least, window) : of_full);
  }
};

// How many of the `count` largest scores of all heads each head has. Ties: score, head, token.
inline std::vector<int32_t> winners(const std::vector<std::vector<double>>& scores, int64_t count) {
  struct Entry {
    double score;
    size_t head;
  };
  std::vector<Entry> all;
  for (size_t h = 0; h < scores.size(); ++h)
    for (const double s : scores[h]) all.push_back({s, h});
  const auto before = [](const Entry& a, const Entry& b) {
    return a.score != b.score ? a.score > b.score : a.head < b.head;
  };
  count = std::min(std::max<int64_t>(count, 0), int64_t(all.size()));
  std::nth_element(all.begin(), all.begin() + count, all.end(), before);
  std::vector<int32_t> won(scores.size(), 0);
  for (int64_t i = 0; i < count; ++i) ++won[all[size_t(i)].head];
  return won;
}

inline int32_t protected_tokens(const HeadScores& t) {
  return int32_t(std::count(t.scores.begin(), t.scores.end(), double(INFINITY)));
}

// Ada-KV, Feng et al. 2024: over the heads of a layer the largest budget * heads scores stay. Every head keeps at least
// its top max(1, floor(budget * alpha)) and its protected tokens. Returns tokens per head.
inline std::vector<int32_t> ada_tokens(const std::vector<HeadScores>& heads, int32_t budget, double alpha) {
  std::vector<std::vector<double>> scores;
  for (const HeadScores& t : heads) {
    if (protected_tokens(t) >= budget) return std::vector<int32_t>(heads.size(), budget);
    std::vector<double> descending = t.scores;
    std::sort(descending.begin(), descending.end(), std::greater<>());
    const size_t safe = std::min(std::max<size_t>(1, size_t(budget * alpha)), descending.size());
    std::fill_n(descending.begin(), safe, INFINITY);
    scores.push_back(std::move(descending));
  }
  return winners(scores, int64_t(budget) * int64_t(heads.size()));
}

}  // namespace kvreplay
