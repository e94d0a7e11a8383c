#pragma once
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "caches/wrapped_scores.hpp"
#include "core/cache.hpp"
#include "core/common_options.hpp"
#include "core/method_info.hpp"
#include "core/philox.hpp"

namespace kvreplay {

// A row that a cut has evicted, with its numbers in the cache.
struct EvictedRow {
  int32_t token;
  double num, den;
  std::vector<double> key, value;
};

// The state of merging in one cache.
struct Merging {
  Merge merge;
  Rng rng;
  std::vector<double> attention;  // [tokens] attention that a token has received; empty: the rule does not use it
  int32_t last_row = -1;          // the last row whose attention was added
  double threshold = std::numeric_limits<double>::quiet_NaN();  // d2o; NaN before the first cut
  int64_t merged = 0, lost = 0;                                 // number of rows so far

  Merging() = default;
  Merging(const Merge& rule, const Rng& draws, int32_t tokens) : merge(rule), rng(draws) {
    if (merge.uses_attention()) attention.assign(size_t(tokens), 0);
  }
  bool observes() const { return !attention.empty(); }
  // The first row of a prompt whose attention counts; PromptNeeds::kNoRows if none does.
  int32_t rows_from(int32_t prompt) const {
    if (!observes()) return PromptNeeds::kNoRows;
    return merge.attention == Merge::Attention::step ? prompt - 1 : 0;
  }
  // Charges the rows' weights and, for streaming methods, the received attention.
  template <class Real>
  void charge(const BasicCache<Real>& cache, bool streaming, ExtraBytes& extra) const {
    if (streaming && observes()) extra.mark_bytes += 8 * int64_t(cache.size());
    for (int32_t i = 0; i < cache.size() && keeps_mass(); ++i) {
      const Real num = cache.num(i), den = cache.den(i);
      extra.weight_floats += (num != 1 || den != 1 ? 1 : 0) + (num != den ? 1 : 0);
    }
  }
  void report(std::map<std::string, double>& extras) const {
    if (merge.is_none()) return;
    extras["merged_rows"] = double(merged), extras["lost_rows"] = double(lost);
  }
  bool keeps_mass() const { return !merge.is_none() && merge.mass == Merge::Mass::keep; }
  // Mean over the rows that saw the token.
  double mean_attention(int32_t token) const {
    const int32_t rows = last_row - token + 1;
    return rows > 0 ? attention[size_t(token)] / rows : 0;
  }
};

// Merges rows that a cut evicted into the cache, which holds the rows that the cut kept. evicted: ascending by token.
template <class Real>
void merge_evicted(const std::vector<EvictedRow>& evicted, Merging& state, BasicCache<Real>& cache);

// The step hooks of a policy whose evicted rows are merged into others, whatever rule evicts them.
template <class Real>
struct MergedCalls : WrappedCalls<Real> {
  using Base = WrappedCalls<Real>;
  Merging* merging;  // null: evicted rows are not merged

  bool observes() const { return (merging != nullptr && merging->observes()) || Base::observes(); }
  void evict(const SerialTeam& team, BasicCache<Real>& cache) const;
  void observe(const SerialTeam& team, BasicCache<Real>& cache, std::span<const double> p) const;
  void observe(const SerialTeam& team, BasicCache<Real>& cache, const HeadProbabilities& p) const;

 private:
  template <class P>
  void receive(const BasicCache<Real>& cache, P probability) const;
};

}  // namespace kvreplay
