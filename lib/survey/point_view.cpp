#include "survey/point_view.hpp"

#include <cmath>

#include "exact/oracle_needs.hpp"
#include "kernels/kernels.hpp"
#include "survey/clusters.hpp"
#include "survey/recorded_output.hpp"
#include "survey/spectrum.hpp"

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

namespace {

std::vector<double> unrotated_keys(const HeadStream<double>& stream) {
  std::vector<double> keys = stream.keys;
  const int32_t pairs = int32_t(stream.inv_freq.size());
  const RopeView rope{stream.inv_freq.data(), pairs, stream.interleaved, stream.attention_factor};
  for (int32_t t = 0; t < stream.tokens; ++t)
    turn_row(rope, stream.positions[size_t(t)], -1, keys.data() + int64_t(t) * stream.shape.dim);
  return keys;
}

std::vector<int32_t> lengths(int32_t tokens) {
  constexpr int32_t kFirst = 256;
  std::vector<int32_t> n;
  for (int64_t at = kFirst; at < tokens; at *= 2) n.push_back(int32_t(at));
  n.push_back(tokens);
  return n;
}

void fit_growth(Clusterability& c) {
  std::vector<double> x, y(c.m_n.size());
  for (const int32_t n : c.m_n) x.push_back(std::log(n));
  for (size_t f = 0; f < std::size(kDeltaRel); ++f) {
    for (size_t i = 0; i < y.size(); ++i) y[i] = std::log(double(c.m_count[f * y.size() + i]));
    const std::optional<LineFit> fit = fit_line(x, y);
    if (!fit) return;  // then no radius has a fit
    c.growth_exponent.push_back(fit->slope);
    c.growth_r2.push_back(fit->r2);
  }
}

}  // namespace

std::vector<PointView> views_of(const HeadStream<double>& stream, bool rope_recorded) {
  std::vector<PointView> views = {{"keys", stream.shape.dim, stream.keys}};
  if (rope_recorded) views.push_back({"keys_unrotated", stream.shape.dim, unrotated_keys(stream)});
  views.push_back({"values", stream.shape.v_dim, stream.values});
  return views;
}

Clusterability survey_points(const PointView& view, const Rng& rng) {
  Clusterability c;
  c.view = view.name;
  KCenter covering = farthest_first(view.points, view.dim, kMostCenters);
  c.centers = std::move(covering.centers);
  c.radii = std::move(covering.radii);
  c.mean_distance = std::move(covering.mean_distance);
  c.median_distance = median_distance(std::span<const double>(view.points), view.dim, rng);
  const Spread spread = spread_of(view.points, view.dim);
  c.rms = spread.rms;
  c.spectral_share_16 = spread.spectral_share_16;
  c.effective_rank = spread.effective_rank;
  std::vector<double> radii;
  for (const double f : kDeltaRel) radii.push_back(f * c.median_distance);
  c.m_n = lengths(int32_t(view.points.size() / size_t(view.dim)));
  c.m_count = count_online_clusters(view.points, view.dim, radii, c.m_n);
  fit_growth(c);
  return c;
}

}  // namespace kvreplay
