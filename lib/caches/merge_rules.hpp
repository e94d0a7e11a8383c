#pragma once
#include <limits>
#include <vector>

#include "core/cache.hpp"
#include "core/merge.hpp"
#include "core/philox.hpp"

namespace kvreplay {

// A row that a cut has evicted, as it was held.
struct EvictedRow {
  int32_t token;
  double num, den;
  std::vector<double> key, value;
};

// What merging knows of one cache.
struct Merging {
  Merge merge;
  Rng rng;
  std::vector<double> attention;  // [tokens] that a token has received; empty: the rule does not look at it
  int32_t last_row = -1;          // the last one that gave some
  double threshold = std::numeric_limits<double>::quiet_NaN();  // d2o; NaN before the first cut
  int64_t merged = 0, lost = 0;                                 // rows, so far

  bool observes() const { return !attention.empty(); }
  bool keeps_mass() const { return !merge.is_none() && merge.mass == Merge::Mass::keep; }
  // Per row that saw the token.
  double mean_attention(int32_t token) const {
    const int32_t rows = last_row - token + 1;
    return rows > 0 ? attention[size_t(token)] / rows : 0;
  }
};

// Makes what a cut evicted part of the cache, which holds what the cut kept.
// evicted: in ascending order of tokens.
template <class Real>
void merge_evicted(const std::vector<EvictedRow>& evicted, Merging& state, BasicCache<Real>& cache);

}  // namespace kvreplay
