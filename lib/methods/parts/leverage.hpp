#pragma once
#include "core/linear.hpp"

namespace kvreplay {

// Leverage of each of n points x_i [m], i.e. how far it stands out: x_i^T (ridge I + sum_j w_j x_j x_j^T)^-1 x_i.
struct Leverage {
  std::span<double> point, gram, inverse;  // [m], [m, m], [m, m]

  static constexpr int64_t doubles(int64_t m) { return m + 2 * m * m; }
  static Leverage carve(Carver& cut, int64_t m) { return {cut(m), cut(m * m), cut(m * m)}; }

  // take(i) writes x_i to `point`; weight(i) = w_i >= 0; calls put(i, leverage).
  void find(const Team auto& team, int32_t n, double ridge, auto weight, auto take, auto put) const {
    const int32_t m = int32_t(point.size());
    team.each(m * m, [&](int32_t i) { gram[size_t(i)] = i % (m + 1) == 0 ? ridge : 0; });
    for (int32_t i = 0; i < n; ++i) {
      take(i);
      const double root = std::sqrt(weight(i));
      team.each(m, [&](int32_t c) { point[size_t(c)] *= root; });
      add_outer(team, gram, point);
    }
    (void)invert(team, gram, m, inverse);  // no eigenvalue is below the ridge
    for (int32_t i = 0; i < n; ++i) {
      take(i);
      const double leverage = quadratic_form(team, inverse, point);
      team.each(1, [&](int32_t) { put(i, leverage); });
    }
  }
};

}  // namespace kvreplay
