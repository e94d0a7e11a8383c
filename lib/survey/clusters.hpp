#pragma once
#include <cstdint>
#include <span>
#include <vector>

// How clusterable a set of points [n, dim] is (SubGen, Section 2.2 and Figure 1): coverings by few balls.
// Every distance is computed from differences in double; nothing of size n x n is held.

namespace kvreplay {

// Farthest-first traversal (Gonzalez 1985) from point 0. Ties, here and everywhere: lowest index (C8). A
// centre is never chosen again, so where all points are covered the lowest index that is left follows.
struct KCenter {
  std::vector<int32_t> centers;       // [k] in the order of their choice
  std::vector<double> radii;          // [k] largest distance of a point to the first i + 1 centres
  std::vector<double> mean_distance;  // [k] mean distance of a point to the nearest of them
};
// k = min(most, n); n >= 1.
KCenter farthest_first(std::span<const double> points, int32_t dim, int32_t most);

// SubGen's Algorithm 1, lines 11 to 22, as far as it decides how many clusters there are: a point joins if a
// representative lies within the radius, else it opens a cluster and represents it for good. Counts after
// the first at[i] points, for every radius: [radii, at]. `at` ascends, in 1..n; at most 8 radii, none
// negative.
std::vector<int64_t> count_online_clusters(std::span<const double> points, int32_t dim, std::span<const double> radii,
                                           std::span<const int32_t> at);

}  // namespace kvreplay
