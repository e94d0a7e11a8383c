#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "core/calibration.hpp"

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

// Budgets of heads, which allocators compute from one number per head. Host code.

// Whole numbers of tokens that sum to `total`, none above `most`: shares rounded down, plus one for the largest
// remainders. Remainders that differ by rounding errors alone are ties. Ties: head.
inline std::vector<int32_t> largest_remainder(const std::vector<double>& shares, int64_t total, int32_t most) {
  constexpr double kRounding = 1e-9;
  std::vector<int32_t> tokens(shares.size());
  std::vector<int64_t> rest(shares.size());
  std::vector<size_t> order(shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t h = 0; h < shares.size(); ++h) {
    tokens[h] = std::min(int32_t(shares[h]), most), total -= tokens[h];
    rest[h] = std::llround((shares[h] - tokens[h]) / kRounding);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rest[a] > rest[b]; });
  for (bool any = true; any && total > 0;) {
    any = false;
    for (const size_t h : order)
      if (total > 0 && tokens[h] < most) ++tokens[h], --total, any = true;
  }
  return tokens;
}

// The least number of unprotected tokens whose scores hold `mass` of their sum; rounding errors do not count.
inline int32_t tokens_of_mass(std::vector<double> scores, double mass) {
  constexpr double kRounding = 1e-9;
  std::erase(scores, double(INFINITY));
  std::sort(scores.begin(), scores.end(), std::greater<>());
  const double enough = (1 - kRounding) * mass * std::accumulate(scores.begin(), scores.end(), 0.0);
  double held = 0;
  int32_t tokens = 0;
  while (tokens < int32_t(scores.size()) && held < enough) held += scores[size_t(tokens++)];
  return tokens;
}

// Whole numbers that sum to `total` and are proportional to `weights`, none above `most`: what exceeds it is shared
// again by the others. Equal weights if all are 0.
inline std::vector<int32_t> proportional_tokens(std::vector<double> weights, int64_t total, int32_t most) {
  if (std::all_of(weights.begin(), weights.end(), [](double w) { return w <= 0; }))
    std::fill_n(weights.begin(), weights.size(), 1.0);
  std::vector<double> shares(weights.size(), most);
  std::vector<size_t> open(weights.size());
  std::iota(open.begin(), open.end(), size_t{0});
  double rest = double(total);
  for (bool any = true; any && !open.empty();) {
    double sum = 0;
    for (const size_t i : open) sum += weights[i];
    for (const size_t i : open) shares[i] = sum > 0 ? rest * weights[i] / sum : 0;
    any = std::erase_if(open, [&](size_t i) {
            if (shares[i] < most) return false;
            shares[i] = most, rest -= most;
            return true;
          }) > 0;
  }
  return largest_remainder(shares, total, most);
}

// DuoAttention, arXiv 2410.10819, as an allocator: streaming heads hold `ends` tokens, the others share the rest of
// budget * heads equally. Empty if that leaves one of them nothing.
inline std::vector<int32_t> duo_tokens(const std::vector<bool>& streams, int32_t budget, int32_t ends, int32_t most) {
  const int64_t heads = int64_t(streams.size()), streaming = std::count(streams.begin(), streams.end(), true);
  const int64_t rest = budget * heads - streaming * ends, others = heads - streaming;
  if (rest < others) return {};
  const std::vector<double> equal(size_t(others), double(rest) / double(std::max<int64_t>(1, others)));
  const std::vector<int32_t> shares = largest_remainder(equal, rest, most);
  std::vector<int32_t> tokens;
  size_t next = 0;
  for (const bool narrow : streams) tokens.push_back(narrow ? ends : shares[next++]);
  return tokens;
}

// KVzip, arXiv 2505.23416, by heads: in descending order of worth, heads hold `most` tokens while budget * heads lasts;
// the others hold `ends`. A rest that is too small for a whole head stays unspent. Ties: head.
inline std::vector<int32_t> whole_heads(const std::vector<double>& worth, int32_t budget, int32_t ends, int32_t most) {
  std::vector<size_t> order(worth.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return worth[a] > worth[b]; });
  const int64_t heads = int64_t(worth.size()), whole = (budget - ends) * heads / std::max(1, most - ends);
  std::vector<int32_t> tokens(worth.size(), ends);
  for (int64_t i = 0; i < std::min(heads, whole); ++i) tokens[order[size_t(i)]] = most;
  return tokens;
}

// HeadKV, arXiv 2410.19258: with b = budget - window, a pool of floor(b / beta) * heads tokens is shared in proportion
// to importance^temp. The rest of b is shared equally. Numbers are rounded half to even, so the sum may miss budget *
// heads by a few tokens.
inline std::vector<int32_t> headkv_tokens(const std::vector<double>& importance, int32_t budget, int32_t window,
                                          double beta, double temp) {
  std::vector<double> weights;
  for (const double i : importance) weights.push_back(std::pow(i, temp));
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double own = budget - window, pooled = std::floor(own / beta), pool = pooled * double(weights.size());
  std::vector<int32_t> tokens;
  for (const double w : weights) tokens.push_back(int32_t(std::nearbyint(w / sum * pool + own - pooled)) + window);
  return tokens;
}

// LU-KV, arXiv 2602.08585: the gain of a head by its next token, in the order in which its scorer would keep tokens
// (allocator lu_kv).
struct LuKv {
  enum class Weight {
    mass,
    contrib
  };  // attention, or attention times the norm of the value after the output
      // projection
  // The prompts whose decode rows measure the gains. self uses the future of the replayed prompt; a file is not
  // possible.
  Calibration calibration{Calibration::Source::others, ""};
  Weight weight = Weight::mass;
  int32_t lo = 0;  // tokens that every head starts with; 0: as many as its method protects, at least 1
  bool operator==(const LuKv&) const = default;
};

// Slopes of the upper concave hull of the running sums of `gains` [n], end points included: the worth of each token, in
// descending order.
inline std::vector<double> hull_slopes(const std::vector<double>& gains) {
  struct Run {
    double sum;
    int64_t count;
  };
  std::vector<Run> runs;
  for (const double gain : gains) {
    runs.push_back({gain, 1});
    // A run whose mean is not below that of the run before it is merged into it.
    while (runs.size() > 1) {
      const Run last = runs.back(), before = runs[runs.size() - 2];
      if (before.sum * double(last.count) > last.sum * double(before.count)) break;
      runs.pop_back();
      runs.back() = {before.sum + last.sum, before.count + last.count};
    }
  }
  std::vector<double> slopes;
  slopes.reserve(gains.size());
  for (const Run& run : runs) slopes.insert(slopes.end(), size_t(run.count), run.sum / double(run.count));
  return slopes;
}

// Tokens of each head: first `least` of each, then always the steepest slope until `total` are spent. Ties: head, rank.
inline std::vector<int32_t> tokens_by_slopes(const std::vector<std::vector<double>>& slopes,
                                             const std::vector<int32_t>& least, int64_t total) {
  std::vector<std::vector<double>> open(slopes.size());
  std::vector<int32_t> tokens(slopes.size());
  for (size_t h = 0; h < slopes.size(); ++h) {
    tokens[h] = std::min(least[h], int32_t(slopes[h].size()));
    open[h].assign(slopes[h].begin() + tokens[h], slopes[h].end());
    total -= tokens[h];
  }
  const std::vector<int32_t> won = winners(open, total);
  for (size_t h = 0; h < slopes.size(); ++h) tokens[h] += won[h];
  return tokens;
}

}  // namespace kvreplay
