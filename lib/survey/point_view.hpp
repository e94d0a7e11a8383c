#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/philox.hpp"
#include "exact/head_stream.hpp"

// Clusterability of the keys and values of one kv head (docs/measures.md).

namespace kvreplay {

// Points in blocks of kernels::kLanes, stored coordinate by coordinate, so that the distances to a block are computed
// in parallel. All in double precision.
class PointBlocks {
 public:
  explicit PointBlocks(int32_t dim) : dim_(dim) {}
  PointBlocks(std::span<const double> points, int32_t dim);  // [n, dim]

  void append(const double* point);  // [dim]
  int32_t size() const { return size_; }
  int32_t blocks() const;
  // Squared distances of `point` to the points of a block, [kernels::kLanes]. Unused places of a block get an arbitrary
  // finite number.
  void squared_distances(int32_t block, const double* point, double* out) const;

 private:
  int32_t dim_, size_ = 0;
  std::vector<double> numbers_;  // [blocks, dim, kLanes]
};

// One set of points of a head.
struct PointView {
  std::string name;  // keys, keys_unrotated, values
  int32_t dim = 0;
  std::vector<double> points;  // [tokens, dim]
};
// Returns the keys as stored, the keys rotated back to position 0 (convention C15), and the values. Unrotated keys need
// `rope_recorded`; they equal the keys if the layer has no rotary embedding.
std::vector<PointView> views_of(const HeadStream<double>& stream, bool rope_recorded);

constexpr int32_t kMostCenters = 256;
constexpr double kDeltaRel[] = {0.3, 0.5, 0.7, 0.9};  // cluster radii as multiples of the median distance

struct Clusterability {
  std::string view;
  std::vector<int32_t> centers;              // [min(256, T)], see KCenter
  std::vector<double> radii, mean_distance;  // likewise
  std::vector<int32_t> m_n;                  // [N] 256, 512, 1024, ... below T, and T
  std::vector<int64_t> m_count;              // [F, N] clusters of radius kDeltaRel[f] * median_distance
  double median_distance = 0;                // between two points, over at most 2000 seeded pairs
  double rms = 0;
  std::optional<double> spectral_share_16, effective_rank;
  // [F] slope of ln m over ln n, and the R^2 of that line; empty if m_n has a single entry.
  std::vector<double> growth_exponent, growth_r2;
};
Clusterability survey_points(const PointView& view, const Rng& rng);

}  // namespace kvreplay
