#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvreplay {

// Least-squares fit of y = intercept + slope x.
struct LineFit {
  double slope = 0;
  double r2 = 0;  // share of the variance of y that the line explains; 1 if y is constant
};

// nullopt if fewer than two x differ.
inline std::optional<LineFit> fit_line(std::span<const double> x, std::span<const double> y) {
  const auto n = double(x.size());
  double mean_x = 0, mean_y = 0, xx = 0, xy = 0, yy = 0, rest = 0;
  for (size_t i = 0; i < x.size(); ++i) mean_x += x[i] / n, mean_y += y[i] / n;
  for (size_t i = 0; i < x.size(); ++i) {
    const double dx = x[i] - mean_x, dy = y[i] - mean_y;
    xx += dx * dx, xy += dx * dy, yy += dy * dy;
  }
  if (!(xx > 0)) return std::nullopt;
  const double slope = xy / xx;
  for (size_t i = 0; i < x.size(); ++i) {
    const double off = y[i] - mean_y - slope * (x[i] - mean_x);
    rest += off * off;
  }
  return LineFit{slope, yy > 0 ? 1 - rest / yy : 1};
}

// How unevenly a non-negative score is distributed over tokens (H2O, Figure 2b).

constexpr double kTopShares[] = {0.01, 0.05, 0.2};  // shares of the tokens

// Number of tokens in a share of n: rounded down, at least 1.
int32_t top_count(double share, int32_t n);
// The `count` tokens with the largest scores (C8), ascending by index.
std::vector<int32_t> top_tokens(std::span<const double> score, int32_t count);
// Jaccard index |A and B| / |A or B| of two ascending lists, not both empty.
double jaccard(std::span<const int32_t> a, std::span<const int32_t> b);
// The top tokens' share of the whole sum, for each of kTopShares; empty if the sum is 0.
std::vector<double> top_shares(std::span<const double> score);
// Gini coefficient. 0: all scores are equal; (n - 1) / n: one token has everything. nullopt if the sum is 0.
std::optional<double> gini(std::span<const double> score);

// Straight lines fitted to the scores in descending order, by rank 1, 2, ...; scores of 0 are left out because they
// have no logarithm. nullopt if fewer than two remain. A high R^2 alone does not prove a power law: compare both fits.
struct TailFits {
  double log_log_slope = 0, log_log_r2 = 0;          // ln score over ln rank: a power law
  double exponential_slope = 0, exponential_r2 = 0;  // ln score over rank: an exponential
};
std::optional<TailFits> fit_tail(std::span<const double> score);

// The spread of a set of points [n, dim] around its mean.
struct Spread {
  double rms = 0;  // root mean square distance to the mean
  // Shares of the variance along the singular directions of the centred points. nullopt if all points are equal.
  std::optional<double> spectral_share_16;  // sum of the 16 largest shares
  std::optional<double> effective_rank;     // exp of the entropy of the shares (Roy and Vetterli 2007)
};
Spread spread_of(std::span<const double> points, int32_t dim);

}  // namespace kvreplay
