#pragma once
#include <span>

#include "core/cache.hpp"
#include "core/vectors.hpp"

// Scores that are fixed when a token arrives.

namespace kvreplay {

// ||v|| / (||k|| + 1e-6) of a row, in one kv head of the cache.
inline double norm_ratio(const Cache auto& cache, int32_t row, int32_t block = 0) {
  constexpr double kLeast = 1e-6;
  return norm(cache.value(row, block)) / (norm(cache.key(row, block)) + kLeast);
}

// The mean over the group of the main directions of the queries (Q-Filters, step 2). to: [dim].
template <class Real>
void mean_direction(const Team auto& team, const Prompt<Real>& prompt, std::span<double> to) {
  const int32_t heads = prompt.shape().heads;
  team.each(prompt.shape().dim, [&](int32_t c) {
    double sum = 0;
    for (int32_t h = 0; h < heads; ++h) sum += prompt.query_direction(h)[size_t(c)] / heads;
    to[size_t(c)] = sum;
  });
}

}  // namespace kvreplay
