#pragma once
#include "core/linear.hpp"

namespace kvreplay {

// Clusters of neighbouring keys x(i), i < n, that k-means finds by inner products. The first key of equal ones, and the
// first of equally near centroids, go first.
struct KeyClusters {
  std::span<double> centroids;  // [count, dim]
  std::span<int32_t> sizes;     // [count]
  int32_t count, dim;

  std::span<double> centroid(int32_t c) const { return centroids.subspan(size_t(c) * size_t(dim), size_t(dim)); }
  // Centroid c becomes the key x(first(c)).
  void start(const Team auto& team, auto x, auto first) const {
    team.each(count * dim, [&](int32_t i) { centroids[size_t(i)] = x(first(i / dim), i % dim); });
  }
  // The cluster with the largest factor(c) <x(i), centroid c>.
  int32_t nearest(auto x, int32_t i, auto factor) const {
    int32_t best = 0;
    double most = -INFINITY;
    for (int32_t c = 0; c < count; ++c) {
      const double* const at = centroid(c).data();
      double product = 0;
      KVR_SIMD_SUM(product) for (int32_t j = 0; j < dim; ++j) product += x(i, j) * at[j];
      product *= factor(c);
      if (product > most) most = product, best = c;
    }
    return best;
  }
  // Labels every key, and counts the keys of each cluster.
  void assign(const Team auto& team, int32_t n, auto x, auto factor, std::span<int32_t> labels) const {
    team.each(n, [&](int32_t i) { labels[size_t(i)] = nearest(x, i, factor); });
    team.each(count, [&](int32_t c) { sizes[size_t(c)] = 0; });
    for (int32_t i = 0; i < n; ++i) ++sizes[size_t(labels[size_t(i)])];
  }
  // Each centroid becomes the mean of its keys; that of an empty cluster stays.
  void update(const Team auto& team, int32_t n, auto x, std::span<const int32_t> labels) const {
    team.each(count * dim, [&](int32_t i) {
      if (sizes[size_t(i / dim)] > 0) centroids[size_t(i)] = 0;
    });
    for (int32_t i = 0; i < n; ++i) {
      double* const at = centroid(labels[size_t(i)]).data();
      team.each(dim, [&](int32_t j) { at[j] += x(i, j); });
    }
    team.each(count * dim, [&](int32_t i) {
      if (sizes[size_t(i / dim)] > 0) centroids[size_t(i)] /= sizes[size_t(i / dim)];
    });
  }
};

}  // namespace kvreplay
