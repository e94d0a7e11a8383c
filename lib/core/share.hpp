#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

// How a budget is shared over kv heads and layers. Host text: allocation happens once, before the replay.

namespace kvreplay {

// PyramidKV, Cai et al. 2024: tokens of layer `layer`, window included; `budget` is the mean over layers and may
// be a real number. Falls back to the same for all where the slope does not fit between window and prompt.
inline int32_t pyramid_tokens(double budget, double beta, int32_t window, int32_t prompt, int32_t layer,
                              int32_t n_layers) {
  if (n_layers <= 1) return int32_t(budget);
  double least = budget / beta, most = 2 * budget - least;
  if (most >= prompt - window) {
    most = prompt - window;
    least = 2 * budget - most;
  }
  if (!(prompt >= most && most >= least && least >= window)) return int32_t(budget);
  return int32_t(std::nearbyint(most - layer * (most - least) / (n_layers - 1)));
}

// Ada-KV, Feng et al. 2024: over the heads of a layer the largest budget * heads scores stay, and in every head
// at least the top floor(budget * alpha). Ties: score, then head, then token. Returns tokens per head.
inline std::vector<int32_t> ada_tokens(const std::vector<std::vector<double>>& scores, int32_t budget,
                                       double alpha) {
  struct Entry {
    double score;
    int32_t head, token;
  };
  const auto before = [](const Entry& a, const Entry& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.head != b.head ? a.head < b.head : a.token < b.token;
  };
  const int32_t heads = int32_t(scores.size()), safe = int32_t(budget * alpha);
  std::vector<int32_t> tokens(scores.size(), 0);
  std::vector<Entry> others;
  int64_t left = int64_t(budget) * heads;
  for (int32_t h = 0; h < heads; ++h) {
    std::vector<Entry> own;
    for (int32_t i = 0; i < int32_t(scores[size_t(h)].size()); ++i)
      own.push_back({scores[size_t(h)][size_t(i)], h, i});
    std::sort(own.begin(), own.end(), before);
    tokens[size_t(h)] = std::min(safe, int32_t(own.size()));
    left -= tokens[size_t(h)];
    others.insert(others.end(), own.begin() + tokens[size_t(h)], own.end());
  }
  std::sort(others.begin(), others.end(), before);
  for (int64_t i = 0; i < std::min(left, int64_t(others.size())); ++i) ++tokens[size_t(others[size_t(i)].head)];
  return tokens;
}

}  // namespace kvreplay
