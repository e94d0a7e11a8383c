#include <algorithm>
#include <cmath>

#include "base/matrices.hpp"
#include "formats/code_books.hpp"
#include "formats/coders/kvquant.hpp"
#include "formats/coders/oscar.hpp"
#include "formats/coders/pca.hpp"

// How the calibrated formats compute their constants from the rows of a prompt.

namespace kvreplay {
namespace {

// Rows from `first` on, or all rows if the prompt ends before `first`.
std::span<const double> rows_from(std::span<const double> rows, int32_t width, int32_t first) {
  const size_t skipped = size_t(first) * size_t(width);
  return skipped < rows.size() ? rows.subspan(skipped) : rows;
}

double quantile(const std::vector<double>& sorted, double t) { return KvQuant::quantile_of(sorted, t); }

// k-means on a line, started from quantiles. A number on a midpoint takes the lower level; an empty level stays where
// it is.
std::vector<double> line_means(std::vector<double> z, int32_t bits) {
  constexpr int kMostSweeps = 50;
  const size_t n = size_t(1) << bits;
  std::sort(z.begin(), z.end());
  std::vector<double> levels(n, 0), sums(z.size() + 1, 0);
  if (z.empty()) return levels;
  for (size_t i = 0; i < z.size(); ++i) sums[i + 1] = sums[i] + z[i];
  for (size_t j = 0; j < n; ++j) levels[j] = quantile(z, (double(j) + 0.5) / double(n));
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    const std::vector<double> before = levels;
    size_t first = 0;
    for (size_t j = 0; j < n; ++j) {
      const double end = j + 1 < n ? (before[j] + before[j + 1]) / 2 : INFINITY;
      const size_t last = size_t(std::upper_bound(z.begin(), z.end(), end) - z.begin());
      if (last > first) levels[j] = (sums[last] - sums[first]) / double(last - first);
      first = std::max(first, last);
    }
    if (levels == before) break;
  }
  return levels;
}

double scaled(double x, double lo, double hi) {
  const double half = (hi - lo) / 2;
  return half == 0 ? 0 : (x - (hi + lo) / 2) / half;
}

// Mean of the rows, and the eigenvalues (descending, clamped at 0) and eigenvectors (one per row) of their covariance.
struct PrincipalAxes {
  std::vector<double> mean, variances, axes;
};
PrincipalAxes principal_axes(std::span<const double> rows, int32_t width) {
  const size_t w = size_t(width), n = rows.size() / w;
  PrincipalAxes found{std::vector<double>(w, 0), {}, {}};
  for (size_t i = 0; i < n; ++i)
    for (size_t c = 0; c < w; ++c) found.mean[c] += rows[i * w + c] / double(n);
  std::vector<double> covariance(w * w, 0), centred(w);
  for (size_t i = 0; i < n; ++i) {
    for (size_t c = 0; c < w; ++c) centred[c] = rows[i * w + c] - found.mean[c];
    for (size_t a = 0; a < w; ++a)
      for (size_t b = 0; b <= a; ++b) covariance[a * w + b] += centred[a] * centred[b] / double(n);
  }
  const Spectrum solved = spectrum_of(covariance, width);
  for (size_t j = w; j-- > 0;) {
    found.variances.push_back(std::max(0.0, solved.values[j]));
    found.axes.insert(found.axes.end(), &solved.vectors[j * w], &solved.vectors[j * w] + w);
  }
  return found;
}

}  // namespace

std::vector<double> KvQuant::calibrate(RowPart part, int32_t width, std::span<const double> all) const {
  const std::span<const double> rows = rows_from(all, width, calibrate_from);
  const size_t w = size_t(width), n = rows.size() / w;
  std::vector<double> constants, z;
  if (part == RowPart::key) {
    constants.resize(2 * w);
    std::vector<double> channel(n);
    for (size_t c = 0; c < w; ++c) {
      for (size_t i = 0; i < n; ++i) channel[i] = rows[i * w + c];
      std::sort(channel.begin(), channel.end());
      const double lo = quantile(channel, outliers / 200), hi = quantile(channel, 1 - outliers / 200);
      constants[c] = lo, constants[w + c] = hi;
      for (const double x : channel)
        if (outliers == 0 || (x >= lo && x <= hi)) z.push_back(scaled(x, lo, hi));
    }
  } else {
    std::vector<double> sorted(w);
    for (size_t i = 0; i < n; ++i) {
      const std::span<const double> row = rows.subspan(i * w, w);
      const RowRange range = range_of(SerialTeam{}, row, sorted.data());
      for (const double x : row)
        if (!range.is_outlier(x)) z.push_back(scaled(x, range.lo, range.hi));
    }
  }
  const std::vector<double> levels = line_means(std::move(z), bits);
  constants.insert(constants.end(), levels.begin(), levels.end());
  return constants;
}

std::vector<double> Pca::tables(RowPart, int32_t) {
  std::vector<double> all;
  for (int32_t b = 1; b <= kMostBits; ++b) {
    const std::vector<double> levels = gauss_levels(b);
    all.insert(all.end(), levels.begin(), levels.end());
  }
  return all;
}

std::vector<double> Pca::calibrate(RowPart, int32_t width, std::span<const double> all) const {
  const PrincipalAxes found = principal_axes(rows_from(all, width, calibrate_from), width);
  const auto w = size_t(width);
  std::vector<double> depth(w, 0);
  // Mean square errors of the normal distribution's code books with 0, 1, ... bits.
  constexpr double kErrors[] = {1, .3634, .1175, .03455, .009501, .002505};
  for (int64_t bit = 0; bit < int64_t(bits) * width; ++bit) {
    size_t best = w;
    double most = 0;
    for (size_t j = 0; j < w; ++j) {
      const auto b = int32_t(depth[j]);
      if (b == kMostBits) continue;
      const double gain = found.variances[j] * (kErrors[b] - kErrors[b + 1]);
      if (gain > most) most = gain, best = j;
    }
    if (best == w) break;
    depth[best] += 1;
  }
  std::vector<double> constants = found.mean;
  for (const double variance : found.variances) constants.push_back(std::sqrt(variance));
  constants.insert(constants.end(), depth.begin(), depth.end());
  constants.insert(constants.end(), found.axes.begin(), found.axes.end());
  return constants;
}

namespace {

// Step 2 of oscar: mean of w_j v_j v_j^T.
std::vector<double> attended_moment(const PromptRows& prompt) {
  const size_t d = size_t(prompt.dim), dv = size_t(prompt.v_dim), n = prompt.keys.size() / d;
  std::vector<double> weights, moment(dv * dv, 0);
  double sum = 0;
  for (size_t j = 0; j < n; ++j) {
    weights.push_back(quadratic_form(SerialTeam{}, prompt.query_moment, prompt.keys.subspan(j * d, d)));
    sum += weights.back();
  }
  for (size_t j = 0; j < n && sum > 0; ++j) {
    const std::span<const double> v = prompt.values.subspan(j * dv, dv);
    for (size_t a = 0; a < dv; ++a)
      for (size_t b = 0; b <= a; ++b) moment[a * dv + b] += weights[j] / sum * v[a] * v[b];
  }
  return moment;
}

// Eigenvectors by descending eigenvalue, one per row; the number of largest magnitude of each is positive.
std::vector<double> signed_axes(const Spectrum& solved) {
  const size_t n = solved.values.size();
  std::vector<double> axes;
  for (size_t i = n; i-- > 0;) {
    const std::span<const double> axis(&solved.vectors[i * n], n);
    size_t most = 0;
    for (size_t c = 1; c < n; ++c)
      if (std::fabs(axis[c]) > std::fabs(axis[most])) most = c;
    for (const double number : axis) axes.push_back(axis[most] < 0 ? -number : number);
  }
  return axes;
}

size_t reversed_bits(size_t i, size_t n) {
  size_t reversed = 0;
  for (size_t bit = 1; bit < n; bit *= 2, i /= 2) reversed = 2 * reversed + i % 2;
  return reversed;
}

double smallest_gap(const std::vector<double>& ascending) {
  const double largest = ascending.back();
  double least = INFINITY;
  for (size_t i = 1; i < ascending.size(); ++i) least = std::min(least, ascending[i] - ascending[i - 1]);
  return ascending.size() > 1 && largest > 0 ? std::max(least, 0.0) / largest : 0;
}

}  // namespace

std::vector<double> Oscar::calibrate(RowPart part, const PromptRows& prompt) {
  const bool of_keys = part == RowPart::key;
  const int32_t width = of_keys ? prompt.dim : prompt.v_dim;
  const std::vector<double> attended = of_keys ? std::vector<double>{} : attended_moment(prompt);
  const Spectrum solved = spectrum_of(of_keys ? prompt.query_moment : std::span<const double>(attended), width);
  const std::vector<double> axes = signed_axes(solved);
  const size_t n = size_t(width);
  std::vector<double> rotation(n * n + 1, 0);
  // Number (i, j) of H is -1 to the number of bits that i and j share, over sqrt(n).
  const auto hadamard = [&](size_t i, size_t j) {
    bool odd = false;
    for (size_t shared = i & j; shared > 0; shared /= 2) odd = odd != (shared % 2 == 1);
    return (odd ? -1 : 1) / std::sqrt(double(n));
  };
  for (size_t i = 0; i < n; ++i)
    for (size_t axis = 0; axis < n; ++axis) {
      const double factor = hadamard(axis, i);
      for (size_t row = 0; row < n; ++row) rotation[row * n + reversed_bits(i, n)] += axes[axis * n + row] * factor;
    }
  rotation.back() = smallest_gap(solved.values);
  return rotation;
}

void Oscar::report(RowPart, int32_t width, const double* constants, std::map<std::string, double>& extras) {
  const double gap = constants[int64_t(width) * width];
  const auto [at, is_new] = extras.emplace("row_eigenvalue_gap", gap);
  if (!is_new) at->second = std::min(at->second, gap);
}

}  // namespace kvreplay
