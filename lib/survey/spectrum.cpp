#include "survey/spectrum.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "base/matrices.hpp"

namespace kvreplay {

int32_t top_count(double share, int32_t n) { return std::max(1, int32_t(share * n)); }

std::vector<int32_t> top_tokens(std::span<const double> score, int32_t count) {
  std::vector<int32_t> order(score.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
    return score[size_t(a)] != score[size_t(b)] ? score[size_t(a)] > score[size_t(b)] : a < b;
  });
  order.resize(size_t(count));
  std::sort(order.begin(), order.end());
  return order;
}

double jaccard(std::span<const int32_t> a, std::span<const int32_t> b) {
  std::vector<int32_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return double(both.size()) / double(a.size() + b.size() - both.size());
}

std::vector<double> top_shares(std::span<const double> score) {
  std::vector<double> sorted(score.begin(), score.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const double total = std::accumulate(sorted.begin(), sorted.end(), 0.0);
  std::vector<double> shares;
  if (!(total > 0)) return shares;
  for (const double share : kTopShares) {
    const auto end = sorted.begin() + top_count(share, int32_t(sorted.size()));
    shares.push_back(std::accumulate(sorted.begin(), end, 0.0) / total);
  }
  return shares;
}

std::optional<double> gini(std::span<const double> score) {
  std::vector<double> sorted(score.begin(), score.end());
  std::sort(sorted.begin(), sorted.end());
  const auto n = double(sorted.size());
  double total = 0, weighted = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    total += sorted[i];
    weighted += (2 * double(i) + 1 - n) * sorted[i];
  }
  if (!(total > 0)) return std::nullopt;
  return weighted / (n * total);
}

std::optional<TailFits> fit_tail(std::span<const double> score) {
  std::vector<double> sorted(score.begin(), score.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  std::vector<double> rank, log_rank, log_score;
  for (const double s : sorted) {
    if (!(s > 0)) break;
    rank.push_back(double(rank.size() + 1));
    log_rank.push_back(std::log(rank.back()));
    log_score.push_back(std::log(s));
  }
  const std::optional<LineFit> power = fit_line(log_rank, log_score), exponential = fit_line(rank, log_score);
  if (!power || !exponential) return std::nullopt;
  return TailFits{power->slope, power->r2, exponential->slope, exponential->r2};
}

Spread spread_of(std::span<const double> points, int32_t dim) {
  constexpr int32_t kDirections = 16;
  const size_t d = size_t(dim), n = points.size() / d;
  std::vector<double> mean(d, 0.0), x(points.begin(), points.begin() + int64_t(n * d));
  for (size_t i = n;
       i-- > 0;)  // subtract the first point, so that equal points have exactly no variance, not a rounding error
    for (size_t c = 0; c < d; ++c) mean[c] += (x[i * d + c] -= x[c]) / double(n);
  double squares = 0;
  for (size_t i = 0; i < n; ++i)
    for (size_t c = 0; c < d; ++c) x[i * d + c] -= mean[c], squares += x[i * d + c] * x[i * d + c];
  Spread spread;
  spread.rms = std::sqrt(squares / double(n));
  if (!(spread.rms > 0)) return spread;
  std::vector<double> scatter(d * d, 0.0);
  for (size_t i = 0; i < n; ++i)
    for (size_t b = 0; b < d; ++b)
      for (size_t a = b; a < d; ++a) scatter[a * d + b] += x[i * d + a] * x[i * d + b];
  std::vector<double> share = eigenvalues_of(scatter, dim);  // ascending
  double sum = 0;
  for (double& variance : share) sum += variance = std::max(variance, 0.0);
  for (double& variance : share) variance /= sum;
  spread.spectral_share_16 = std::accumulate(share.end() - std::min(kDirections, dim), share.end(), 0.0);
  double entropy = 0;
  for (const double p : share)
    if (p > 0) entropy -= p * std::log(p);
  spread.effective_rank = std::exp(entropy);
  return spread;
}

}  // namespace kvreplay
