#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/calibration.hpp"
#include "core/share.hpp"

namespace kvreplay {

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
