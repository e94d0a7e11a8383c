#include "survey/spectrum.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/matrices.hpp"

namespace kvreplay {

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
