#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvreplay {

// Mean and extremes of numbers that come one by one. Without any, a reduction has no value.
class Sums {
 public:
  void add(double x) {
    most_ = count_ == 0 ? x : std::max(most_, x);
    least_ = count_ == 0 ? x : std::min(least_, x);
    sum_ += x;
    ++count_;
  }
  int64_t count() const { return count_; }
  std::optional<double> mean() const { return of(sum_ / double(count_)); }
  // Of numbers that can leave the range of a double: then there is no value either.
  std::optional<double> finite_mean() const { return std::isfinite(sum_) ? mean() : std::nullopt; }
  std::optional<double> maximum() const { return of(most_); }
  std::optional<double> minimum() const { return of(least_); }

 private:
  std::optional<double> of(double x) const { return count_ > 0 ? std::optional(x) : std::nullopt; }
  double sum_ = 0, most_ = 0, least_ = 0;
  int64_t count_ = 0;
};

// Linear interpolation between order statistics, numpy's default. `values` is not empty and is sorted in
// place.
inline double quantile(std::vector<double>& values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * double(values.size() - 1);
  const size_t low = size_t(at), high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - double(low)) * (values[high] - values[low]);
}

}  // namespace kvreplay
