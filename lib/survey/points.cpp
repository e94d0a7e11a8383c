#include "survey/points.hpp"

#include "kernels/kernels.hpp"

namespace kvreplay {
using kernels::kLanes;

PointBlocks::PointBlocks(std::span<const double> points, int32_t dim) : dim_(dim) {
  numbers_.reserve(points.size() + size_t(kLanes) * size_t(dim));
  for (size_t at = 0; at < points.size(); at += size_t(dim)) append(points.data() + at);
}

void PointBlocks::append(const double* point) {
  if (size_ % kLanes == 0) numbers_.resize(numbers_.size() + size_t(dim_) * size_t(kLanes), 0.0);
  double* const block = numbers_.data() + int64_t(blocks() - 1) * dim_ * kLanes;
  const int32_t lane = size_++ % kLanes;
  for (int32_t c = 0; c < dim_; ++c) block[int64_t(c) * kLanes + lane] = point[c];
}

int32_t PointBlocks::blocks() const { return int32_t(int64_t(numbers_.size()) / (int64_t(dim_) * kLanes)); }

void PointBlocks::squared_distances(int32_t block, const double* point, double* out) const {
  kernels::squared_distances(numbers_.data() + int64_t(block) * dim_ * kLanes, point, dim_, out);
}

}  // namespace kvreplay
