#pragma once
#include <cstdint>
#include <span>
#include <vector>

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

}  // namespace kvreplay
