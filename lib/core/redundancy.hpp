#pragma once
#include "core/vectors.hpp"

namespace kvreplay {

// Which of the keys similar to a key is not counted towards its redundancy.
enum class Retain { last, first, none };

// Steps 2 to 4 of R-KV (methods/rkv.hpp), with room for n rows.
struct Redundancy {
  std::span<double> all;                       // [dim] sum of directions
  std::span<double> length, repeats, removed;  // [n]

  // found [n]: softmax over the columns of S of their means. The sum over a column is one product with `all`.
  KVR_FN void find(const Team auto& team, const auto& cache, double threshold, Retain retain,
                   std::span<double> found) const {
    const int32_t n = cache.size(), dim = cache.shape().dim;
    team.each(n, [&](int32_t i) { length[size_t(i)] = 1 / (norm(cache.key(i)) + 1e-8); });
    team.each(dim, [&](int32_t c) {
      double sum = 0;
      for (int32_t i = 0; i < n; ++i) sum += length[size_t(i)] * double(cache.key(i)[size_t(c)]);
      all[size_t(c)] = sum;
    });
    const auto cosine = [&](int32_t i, int32_t j) {
      return i == j ? 0.0 : wide_dot(cache.key(i), cache.key(j)) * length[size_t(i)] * length[size_t(j)];
    };
    // The entry of row i that is set to 0. `first` is the smallest index when keys that are not similar count as index
    // 0, as in the release: it is always token 0.
    const auto repeated = [&](int32_t i) {
      for (int32_t j = n - 1; j > 0 && retain == Retain::last; --j)
        if (cosine(i, j) > threshold) return j;
      return retain == Retain::none ? i : 0;
    };
    team.each(n, [&](int32_t i) {
      const int32_t j = repeated(i);
      repeats[size_t(i)] = j, removed[size_t(i)] = cosine(i, j);
    });
    team.each(n, [&](int32_t j) {
      const double of_itself = wide_dot(cache.key(j), cache.key(j)) * length[size_t(j)];
      double sum = (wide_dot(all, cache.key(j)) - of_itself) * length[size_t(j)];
      for (int32_t i = 0; i < n; ++i) sum -= repeats[size_t(i)] == j ? removed[size_t(i)] : 0;
      found[size_t(j)] = sum / n;
    });
    softmax(team, found);
  }
};

}  // namespace kvreplay
