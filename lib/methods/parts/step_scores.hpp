#pragma once
#include "core/policy.hpp"

// A[i]: the attention that a token has received so far, stored as its row's score (H2O and methods built on it).

namespace kvreplay {

// Sums over all causal rows of the prompt.
template <class Real>
void accumulate_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
  team.each(cache.size(), [&](int32_t i) { cache.score(i) = prompt.column_sum(cache.token(i)); });
}

// Adds the attention of this step, p [rows].
void accumulate(const Team auto& team, Cache auto& cache, std::span<const double> p) {
  team.each(cache.size(), [&](int32_t i) { cache.score(i) += p[size_t(i)]; });
}

// Scores that the present row gives to the rows it attends to, aggregated over the query heads: its probabilities, or
// the output error without a token (token_score()).
struct StepScores {
  TokenScore which;
  HeadProbabilities p;
  std::span<double> outputs;  // [heads, v_dim]; empty for attention

  static int64_t state_doubles(TokenScore which, const HeadShape& shape) {
    return which == TokenScore::attention ? 0 : int64_t(shape.heads) * shape.v_dim;
  }
  // Call before the first score: computes the output of each query head.
  void open(const Team auto& team, const Cache auto& cache) const {
    if (which == TokenScore::attention) return;
    const HeadShape s = cache.shape();
    constexpr int32_t kWide = 8;  // channels summed together
    const int32_t runs = (s.v_dim + kWide - 1) / kWide;
    team.each(s.heads * runs, [&](int32_t at) {
      const int32_t head = at / runs, first = at % runs * kWide, block = s.block_of(head);
      const int32_t count = s.v_dim - first < kWide ? s.v_dim - first : kWide;
      double sum[kWide] = {};
      for (int32_t i = 0; i < p.rows; ++i) {
        const auto v = cache.value(i, block).subspan(size_t(first));
        for (int32_t c = 0; c < count; ++c) sum[c] += p(head, i) * double(v[size_t(c)]);
      }
      for (int32_t c = 0; c < count; ++c) of_head(head, s.v_dim)[size_t(first + c)] = sum[c];
    });
  }
  double operator()(const Cache auto& cache, int32_t row) const {
    if (which == TokenScore::attention) return p.group(row);
    const HeadShape s = cache.shape();
    return aggregate(p.how, s.heads, [&](int32_t h) {
      const double share = p(h, row), logit = share > 0 ? p.logit(h, row) - std::log(double(cache.den(row))) : 0;
      return token_score(which, share, logit, cache.value(row, s.block_of(h)), of_head(h, s.v_dim));
    });
  }

 private:
  std::span<double> of_head(int32_t head, int32_t width) const {
    return outputs.subspan(size_t(head) * size_t(width), size_t(width));
  }
};

}  // namespace kvreplay
