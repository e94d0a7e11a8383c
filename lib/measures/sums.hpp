#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvreplay {

// Mean and extremes of a sequence of numbers; nullopt if it is empty.
class Sums {
 public:
  void add(double x) {
    most_ = count_ == 0 ? x : std::max(most_, x);
    least_ = count_ == 0 ? x : std::min(least_, x);
    sum_ += x;
    ++count_;
  }
  void add_all(const Sums& others) {
    if (others.count_ == 0) return;
    most_ = count_ == 0 ? others.most_ : std::max(most_, others.most_);
    least_ = count_ == 0 ? others.least_ : std::min(least_, others.least_);
    sum_ += others.sum_, count_ += others.count_;
  }
  int64_t count() const { return count_; }
  std::optional<double> mean() const { return of(sum_ / double(count_)); }
  // Mean of numbers that may exceed the range of double; nullopt if the sum does.
  std::optional<double> finite_mean() const { return std::isfinite(sum_) ? mean() : std::nullopt; }
  std::optional<double> maximum() const { return of(most_); }
  std::optional<double> minimum() const { return of(least_); }

 private:
  std::optional<double> of(double x) const { return count_ > 0 ? std::optional(x) : std::nullopt; }
  double sum_ = 0, most_ = 0, least_ = 0;
  int64_t count_ = 0;
};

// Linear interpolation between order statistics, numpy's default; NaN if a value is. `values` is not empty and is
// reordered.
inline double quantile(std::vector<double>& values, double q) {
  for (const double x : values)
    if (std::isnan(x)) return x;
  const double at = q * double(values.size() - 1);
  const auto low = values.begin() + int64_t(at);
  std::nth_element(values.begin(), low, values.end());
  const double next = low + 1 < values.end() ? *std::min_element(low + 1, values.end()) : *low;
  return *low + (at - std::floor(at)) * (next - *low);
}

}  // namespace kvreplay
