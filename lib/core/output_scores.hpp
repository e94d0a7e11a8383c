#pragma once
#include <cmath>
#include <span>

#include "core/vectors.hpp"

namespace kvreplay {

// What a row gives to a token in place of its attention probability: the loss of the output if the token's value, its
// key, or both are pruned, to first order. OBCache, Gu et al. 2025, sections 3 and 4 (the closed forms are derived anew
// from its premise: pruning a key sends its logit to 0). With p the probability, l the logit and o the row's output:
//   value: p^2 ||v||^2    key: p^2 l^2 ||v - o||^2    joint: p^2 ||v + l (v - o)||^2
enum class TokenScore { attention, obc_value, obc_key, obc_joint };
constexpr const char* kTokenScores[] = {"attention", "obc_value", "obc_key", "obc_joint"};

// Memory of one row over n rows of a cache.
struct OutputScratch {
  std::span<double> logits, probabilities;  // [n]
  std::span<double> output;                 // [v_dim]
};

// Adds to [n] what prompt row `row` gives the rows of a cache, as one of its query heads sees them.
template <class Real>
KVR_FN void add_output_scores(const Team auto& team, const Prompt<Real>& prompt, const BasicCache<Real>& cache,
                              int32_t head, int32_t row, TokenScore which, const OutputScratch& scratch, double* to) {
  const int32_t n = cache.size(), block = prompt.shape().block_of(head);
  const std::span<double> l = scratch.logits, p = scratch.probabilities, o = scratch.output;
  const auto query = prompt.query(head, row);
  team.each(n, [&](int32_t i) {
    l[size_t(i)] = cache.token(i) > row ? -double(INFINITY) : prompt.logit(wide_dot(query, cache.key(i, block)));
  });
  const double sink = prompt.sink_logit(head);
  double top = team.largest(n, [&](int32_t i) { return l[size_t(i)]; }).score;
  top = sink > top ? sink : top;
  team.each(n, [&](int32_t i) { p[size_t(i)] = std::exp(l[size_t(i)] - top); });
  const double total = team.sum(n, [&](int32_t i) { return p[size_t(i)]; }) + std::exp(sink - top);
  team.each(int32_t(o.size()), [&](int32_t c) {
    double sum = 0;
    for (int32_t i = 0; i < n; ++i) sum += p[size_t(i)] * double(cache.value(i, block)[size_t(c)]);
    o[size_t(c)] = sum / total;
  });
  team.each(n, [&](int32_t i) {
    const auto v = cache.value(i, block);
    const double share = p[size_t(i)] / total, logit = share > 0 ? l[size_t(i)] : 0;
    double square = 0;
    for (size_t c = 0; c < o.size(); ++c) {
      const double own = double(v[c]), rest = logit * (own - o[c]);
      const double lost = which == TokenScore::obc_value ? own : which == TokenScore::obc_key ? rest : own + rest;
      square += lost * lost;
    }
    to[i] += share * share * square;
  });
}

}  // namespace kvreplay
