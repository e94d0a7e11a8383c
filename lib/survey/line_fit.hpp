#pragma once
#include <cstddef>
#include <optional>
#include <span>

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

}  // namespace kvreplay
