#include "exact/oracle_needs.hpp"

#include <algorithm>
#include <cmath>

#include "core/linear.hpp"

namespace kvreplay {
namespace {

constexpr int64_t kMostPairs = 2000;

double median(std::vector<double>& x) {
  if (x.empty()) return 0;
  const auto middle = x.begin() + int64_t(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  return x.size() % 2 == 1 ? *middle : (*middle + *std::max_element(x.begin(), middle)) / 2;
}

// Largest norm of vectors of `width` numbers.
template <class Real>
double largest_norm(const std::vector<Real>& vectors, size_t width) {
  double most = 0;
  for (size_t at = 0; at < vectors.size(); at += width) {
    const std::span<const Real> x(vectors.data() + at, width);
    most = std::max(most, wide_dot(x, x));
  }
  return std::sqrt(most);
}

}  // namespace

template <class Real>
double median_distance(std::span<const Real> points, int32_t dim, const Rng& rng) {
  const int64_t n = int64_t(points.size()) / dim;
  const auto point = [&](int64_t i) { return points.subspan(size_t(i) * size_t(dim), size_t(dim)); };
  std::vector<double> distances;
  const auto add = [&](int64_t i, int64_t j) { distances.push_back(std::sqrt(squared_distance(point(i), point(j)))); };
  if (n * (n - 1) / 2 <= kMostPairs) {
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = i + 1; j < n; ++j) add(i, j);
  } else {
    for (int64_t pair = 0; pair < kMostPairs; ++pair) {
      const auto i = int64_t(rng.uniform(RngStream::distance_pairs, pair, 0) * double(n));
      const auto j = int64_t(rng.uniform(RngStream::distance_pairs, pair, 1) * double(n - 1));
      add(i, j + (j >= i ? 1 : 0));  // j is drawn from the other points
    }
  }
  return median(distances);
}

template <class Real>
double median_key_distance(const HeadStream<Real>& stream, const Rng& rng) {
  const size_t numbers = size_t(stream.tokens) * size_t(stream.shape.dim);
  return median_distance(std::span<const Real>(stream.keys.data(), numbers), stream.shape.dim, rng);
}

template <class Real>
double largest_query_norm(const HeadStream<Real>& stream) {
  return largest_norm(stream.queries, size_t(stream.shape.dim));
}

template <class Real>
double largest_key_norm(const HeadStream<Real>& stream) {
  return largest_norm(stream.keys, size_t(stream.shape.dim));
}

template double median_distance(std::span<const float>, int32_t, const Rng&);
template double median_distance(std::span<const double>, int32_t, const Rng&);
template double median_key_distance(const HeadStream<float>&, const Rng&);
template double median_key_distance(const HeadStream<double>&, const Rng&);
template double largest_query_norm(const HeadStream<float>&);
template double largest_query_norm(const HeadStream<double>&);
template double largest_key_norm(const HeadStream<float>&);
template double largest_key_norm(const HeadStream<double>&);

}  // namespace kvreplay
