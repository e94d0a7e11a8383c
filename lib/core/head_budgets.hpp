#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

// Budgets of heads, which allocators compute from one number per head. Host code.

namespace kvreplay {

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

}  // namespace kvreplay
