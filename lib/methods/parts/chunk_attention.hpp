#pragma once
#include "core/cache.hpp"
#include "core/vectors.hpp"

namespace kvreplay {

// The attention that tokens receive if their neighbours may look ahead. Consecutive rows of a cache form chunks; the
// last chunk may be shorter.
//  1. Inside a chunk, softmax over j of <q_i, k_j> for every i, without mask and without scale.
//  2. Column sums over i, times ||v_j||, aggregated over the group.  3. Mean of three neighbours (zeros outside,
//     divisor 3).
struct ChunkAttention {
  std::span<double> received;  // [heads, rows]
  std::span<double> row;       // [chunk]

  // Calls put(j, x) with the attention x that row begin + j receives.
  template <class Real>
  void find(const Team auto& team, const Prompt<Real>& prompt, const BasicCache<Real>& cache, int32_t begin,
            int32_t rows, auto put) const {
    const int32_t heads = prompt.shape().heads;
    for (int32_t h = 0; h < heads; ++h) read_head(team, prompt, cache, begin, rows, h);
    team.each(rows,
              [&](int32_t j) { received[size_t(j)] = aggregate(prompt.how(), &received[size_t(j)], rows, heads); });
    team.each(rows, [&](int32_t j) {
      const double before = j > 0 ? received[size_t(j) - 1] : 0, after = j + 1 < rows ? received[size_t(j) + 1] : 0;
      put(j, (before + received[size_t(j)] + after) / 3);
    });
  }

 private:
  template <class Real>
  void read_head(const Team auto& team, const Prompt<Real>& prompt, const BasicCache<Real>& cache, int32_t begin,
                 int32_t rows, int32_t h) const {
    const int32_t chunk = int32_t(row.size());
    const Prompt<Real> own = prompt.block(prompt.shape().block_of(h));
    const std::span<double> sums = received.subspan(size_t(h) * size_t(rows), size_t(rows));
    team.each(rows, [&](int32_t j) { sums[size_t(j)] = 0; });
    for (int32_t first = 0; first < rows; first += chunk) {
      const int32_t count = rows - first < chunk ? rows - first : chunk;
      const std::span<double> x = row.first(size_t(count));
      for (int32_t i = first; i < first + count; ++i) {
        const auto query = prompt.query(h, cache.token(begin + i));
        team.each(count, [&](int32_t j) { x[size_t(j)] = wide_dot(query, own.key(cache.token(begin + first + j))); });
        softmax(team, x);
        team.each(count, [&](int32_t j) { sums[size_t(first + j)] += x[size_t(j)]; });
      }
    }
    team.each(rows, [&](int32_t j) { sums[size_t(j)] *= norm(own.value(cache.token(begin + j))); });
  }
};

}  // namespace kvreplay
