#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/calibration.hpp"
#include "core/share.hpp"

namespace kvreplay {

// LU-KV, arXiv 2602.08585: what a head gains by its next token, in the order in which its scorer would keep them
// (allocator lu_kv).
struct LuKv {
  enum class Weight { mass, contrib };  // attention, or attention times the value's norm behind the output projection
  // Whose decode rows say what a head gains: self sees the future. No file says it.
  Calibration calibration{Calibration::Source::others, ""};
  Weight weight = Weight::mass;
  int32_t lo = 0;  // tokens that every head starts with; 0: those that its method protects, at least 1
  bool operator==(const LuKv&) const = default;
};

// Slopes of the upper concave hull of the running sums of `gains` [n], with their end points: what each token is worth,
// falling.
inline std::vector<double> hull_slopes(const std::vector<double>& gains) {
  struct Run {
    double sum;
    int64_t count;
  };
  std::vector<Run> runs;
  for (const double gain : gains) {
    runs.push_back({gain, 1});
    // A run that rises above the one before it joins it.
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

// Tokens of each head: `least` of each first, then always the steepest slope until `total` are spent. Ties: head, rank.
inline std::vector<int32_t> by_slopes(const std::vector<std::vector<double>>& slopes, const std::vector<int32_t>& least,
                                      int64_t total) {
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
