#include "calibration/known_queries.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/linear.hpp"
#include "core/rotary.hpp"

namespace kvreplay {
namespace {

constexpr SerialTeam kAlone{};

const double* or_null(const std::vector<double>& numbers) { return numbers.empty() ? nullptr : numbers.data(); }

// Computes the statistics of one query head.
class Head {
 public:
  Head(const std::vector<QueryRows>& prompts, const QueryShape& shape, int32_t head)
      : prompts_(prompts), shape_(shape), head_(head), one_(size_t(shape.dim)) {}

  void means(std::span<double> mean, std::span<double> sizes) {
    each([&](const QueryRows& of, auto query, auto, int32_t position) {
      const double weight = double(of.count) * double(prompts_.size());
      one_.assign(query.begin(), query.end());
      rotate(kAlone, shape_.rope, -position, one_.data());
      for (size_t c = 0; c < mean.size(); ++c) mean[c] += one_[c] / weight;
      for (size_t f = 0; f < sizes.size(); ++f) sizes[f] += modulus(shape_.rope, std::span(one_), int32_t(f)) / weight;
    });
  }
  // Mean and covariance (divisor N - 1) of the un-rotated queries of all prompts together, without the first `after`
  // rows of each.
  void moments(int32_t after, std::span<double> mean, std::span<double> covariance) {
    int64_t count = 0;
    each_unrotated(after, [&] {
      ++count;
      for (size_t c = 0; c < mean.size(); ++c) mean[c] += one_[c];
    });
    for (double& x : mean) x /= double(std::max<int64_t>(1, count));
    each_unrotated(after, [&] {
      for (size_t c = 0; c < mean.size(); ++c) one_[c] -= mean[c];
      add_outer(kAlone, covariance, one_);
    });
    complete(kAlone, covariance, shape_.dim, 0);
    for (double& x : covariance) x /= double(std::max<int64_t>(1, count - 1));
  }
  void direction(std::span<double> to) {
    const size_t d = size_t(shape_.dim);
    std::vector<double> gram(d * d, 0), power(d * d);
    each([&](const QueryRows&, auto query, auto, int32_t) { add_outer(kAlone, gram, query); });
    complete(kAlone, gram, shape_.dim, 0);
    first_eigenvector(kAlone, gram, shape_.dim, power, to);
    int64_t agree = 0, all = 0;
    each([&](const QueryRows&, auto query, auto, int32_t) { ++all, agree += wide_dot(query, to) > 0 ? 1 : 0; });
    if (2 * agree > all) return;
    for (double& x : to) x = -x;
  }
  // Ranks channels by the mean of |q_c k_c|, largest first; ties: the lower channel.
  void channels(std::span<int32_t> to) {
    std::vector<double> weight(to.size(), 0);
    each([&](const QueryRows& of, auto query, auto key, int32_t) {
      for (size_t c = 0; c < weight.size(); ++c) weight[c] += std::abs(query[c] * key[c]) / double(of.count);
    });
    std::iota(to.begin(), to.end(), 0);
    std::stable_sort(to.begin(), to.end(), [&](int32_t a, int32_t b) { return weight[size_t(a)] > weight[size_t(b)]; });
  }

 private:
  template <class Each>
  void each(Each show) const {
    for (const QueryRows& of : prompts_)
      of.each(head_, [&](std::span<const double> query, std::span<const double> key, int32_t position) {
        show(of, query, key, position);
      });
  }
  // Calls show() with `one_` set to each query before its rotation.
  template <class Show>
  void each_unrotated(int32_t after, Show show) {
    for (const QueryRows& of : prompts_) {
      int64_t row = 0;
      of.each(head_, [&](std::span<const double> query, std::span<const double>, int32_t position) {
        if (row++ < after) return;
        one_.assign(query.begin(), query.end());
        rotate(kAlone, shape_.rope, -position, one_.data());
        show();
      });
    }
  }
  const std::vector<QueryRows>& prompts_;
  const QueryShape& shape_;
  int32_t head_;
  std::vector<double> one_;
};

}  // namespace

QueryStatistics KnownQueries::from(int32_t first) const {
  const QueryStatistics all{or_null(means),      or_null(sizes),
                            or_null(directions), channels.empty() ? nullptr : channels.data(),
                            or_null(full_means), or_null(covariances)};
  return all.from(first, dim, pairs);
}

KnownQueries learn(const std::vector<QueryRows>& prompts, const QueryShape& shape, StatisticsNeeds needs) {
  KnownQueries known{shape.heads, shape.dim, shape.rope.pairs};
  const size_t heads = size_t(shape.heads), dim = size_t(shape.dim), pairs = size_t(known.pairs);
  for (const QueryRows& of : prompts) known.rows += of.count;
  if (needs.means) known.means.assign(heads * dim, 0), known.sizes.assign(heads * pairs, 0);
  if (needs.directions) known.directions.assign(heads * dim, 0);
  if (needs.channels) known.channels.assign(heads * dim, 0);
  if (needs.moments()) known.full_means.assign(heads * dim, 0), known.covariances.assign(heads * dim * dim, 0);
  for (size_t h = 0; h < heads; ++h) {
    Head head(prompts, shape, int32_t(h));
    if (needs.means)
      head.means(std::span(known.means).subspan(h * dim, dim), std::span(known.sizes).subspan(h * pairs, pairs));
    if (needs.directions) head.direction(std::span(known.directions).subspan(h * dim, dim));
    if (needs.channels) head.channels(std::span(known.channels).subspan(h * dim, dim));
    if (needs.moments())
      head.moments(needs.moments_after, std::span(known.full_means).subspan(h * dim, dim),
                   std::span(known.covariances).subspan(h * dim * dim, dim * dim));
  }
  return known;
}

}  // namespace kvreplay
