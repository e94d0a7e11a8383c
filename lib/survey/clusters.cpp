#include "survey/clusters.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>

#include "kernels/kernels.hpp"
#include "survey/point_view.hpp"

namespace kvreplay {
namespace {

using kernels::kLanes;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kChosen = -1;  // replaces a centre's distance, so that it is never the farthest point

// nearest[i] = min(nearest[i], squared distance of point i to `center`)
void update_nearest(const PointBlocks& blocks, const double* center, std::vector<double>& nearest) {
  std::array<double, kLanes> distance{};
  for (int32_t b = 0; b < blocks.blocks(); ++b) {
    blocks.squared_distances(b, center, distance.data());
    double* const old = nearest.data() + int64_t(b) * kLanes;
    for (int32_t l = 0; l < kLanes; ++l) old[l] = std::min(old[l], distance[size_t(l)]);
  }
}

// The largest x with sqrt(x) <= radius. Comparing squared distances with x gives the same result as comparing distances
// with radius.
double largest_square(double radius) {
  double x = radius * radius;
  while (std::sqrt(x) > radius) x = std::nextafter(x, 0.0);
  for (double next = x; std::sqrt(next) <= radius; next = std::nextafter(x, kInfinity)) x = next;
  return x;
}

// Representatives of clusters for several radii. Most points represent clusters for several radii, so each point is
// stored once, with a mark per radius.
class Representatives {
 public:
  static constexpr size_t kMostRadii = 8;
  Representatives(std::span<const double> radii, int32_t dim) : radii_(radii.size()), blocks_(dim) {
    assert(radii.size() <= kMostRadii);
    for (size_t f = 0; f < radii_; ++f) reach_[f] = largest_square(radii[f]);
  }

  void add(const double* point) {
    std::array<bool, kMostRadii> open{};
    size_t left = radii_;
    std::fill_n(open.begin(), radii_, true);
    // Starts with the newest block: neighbouring tokens are often alike.
    for (int32_t b = blocks_.blocks() - 1; b >= 0 && left > 0; --b) {
      std::array<double, kLanes> distance{};
      blocks_.squared_distances(b, point, distance.data());
      for (size_t f = 0; f < radii_; ++f)
        if (open[f] && nearest(f, b, distance) <= reach_[f]) open[f] = false, --left;
    }
    if (left > 0) append(point, open);
  }
  int64_t count(size_t radius) const { return counts_[radius]; }

 private:
  double nearest(size_t f, int32_t block, const std::array<double, kLanes>& distance) const {
    const double* const penalty = penalty_[f].data() + int64_t(block) * kLanes;
    double least = kInfinity;
    for (size_t l = 0; l < size_t(kLanes); ++l) least = std::min(least, distance[l] + penalty[l]);
    return least;
  }

  void append(const double* point, const std::array<bool, kMostRadii>& open) {
    const size_t at = size_t(blocks_.size());
    blocks_.append(point);
    for (size_t f = 0; f < radii_; ++f) {
      penalty_[f].resize(size_t(blocks_.blocks()) * size_t(kLanes), kInfinity);
      if (open[f]) penalty_[f][at] = 0, ++counts_[f];
    }
  }

  size_t radii_;
  PointBlocks blocks_;
  std::array<double, kMostRadii> reach_{};
  std::array<int64_t, kMostRadii> counts_{};
  std::array<std::vector<double>, kMostRadii> penalty_;  // 0 if the point is a representative, else infinity
};

}  // namespace

KCenter farthest_first(std::span<const double> points, int32_t dim, int32_t most) {
  const PointBlocks blocks(points, dim);
  const int32_t n = blocks.size(), k = std::min(most, n);
  std::vector<double> nearest(size_t(blocks.blocks()) * size_t(kLanes), kInfinity);
  KCenter result;
  for (int32_t next = 0; int32_t(result.centers.size()) < k;) {
    result.centers.push_back(next);
    update_nearest(blocks, points.data() + int64_t(next) * dim, nearest);
    nearest[size_t(next)] = kChosen;
    double sum = 0;
    for (int32_t i = 0; i < n; ++i) sum += std::sqrt(std::max(0.0, nearest[size_t(i)]));
    next = int32_t(std::max_element(nearest.begin(), nearest.begin() + n) - nearest.begin());
    result.radii.push_back(std::sqrt(std::max(0.0, nearest[size_t(next)])));
    result.mean_distance.push_back(sum / n);
  }
  return result;
}

std::vector<int64_t> count_online_clusters(std::span<const double> points, int32_t dim, std::span<const double> radii,
                                           std::span<const int32_t> at) {
  Representatives representatives(radii, dim);
  std::vector<int64_t> counts(radii.size() * at.size());
  int32_t seen = 0;
  for (size_t i = 0; i < at.size(); ++i) {
    for (; seen < at[i]; ++seen) representatives.add(points.data() + int64_t(seen) * dim);
    for (size_t f = 0; f < radii.size(); ++f) counts[f * at.size() + i] = representatives.count(f);
  }
  return counts;
}

}  // namespace kvreplay
