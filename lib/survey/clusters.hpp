#pragma once
#include <cstdint>
#include <span>
#include <vector>

// How clusterable a set of points [n, dim] is (SubGen, Section 2.2 and Figure 1): how few balls cover it. Every
// distance is computed from differences in double precision; nothing of size n x n is stored.

namespace kvreplay {

// Farthest-first traversal (Gonzalez 1985) from point 0. Ties here and below: lowest index (C8). A centre is never
// chosen twice, so once all points are covered the remaining points follow by index.
struct KCenter {
  std::vector<int32_t> centers;       // [k] in order of choice
  std::vector<double> radii;          // [k] largest distance of a point to its nearest among the first i + 1 centres
  std::vector<double> mean_distance;  // [k] mean distance of a point to its nearest among them
};
// k = min(most, n); n >= 1.
KCenter farthest_first(std::span<const double> points, int32_t dim, int32_t most);

// Counts clusters by SubGen's Algorithm 1, lines 11 to 22. A point joins a cluster if a representative lies within the
// radius; otherwise it opens a cluster and represents it from then on. Returns the counts after the first at[i] points
// for every radius, [radii, at]. `at` ascends, in 1..n; at most 8 radii, none negative.
std::vector<int64_t> count_online_clusters(std::span<const double> points, int32_t dim, std::span<const double> radii,
                                           std::span<const int32_t> at);

}  // namespace kvreplay
