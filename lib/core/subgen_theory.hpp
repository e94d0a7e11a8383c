#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/method_info.hpp"

namespace kvreplay {

// What Corollary 1 of SubGen asks for (measures.md, section 7): t = c_t eps^-2 exp(2 delta r) ln n samples a
// cluster, s = c_s eps^-2 d slots. t can exceed what a double holds.
struct SubGenTheory {
  double log_t = 0, s = 0;

  static SubGenTheory of(double epsilon, double delta, double r, int32_t n, int32_t d, double c_t,
                         double c_s) {
    return {
        std::log(c_t) - 2 * std::log(epsilon) + 2 * delta * r + std::log(std::log(double(std::max(2, n)))),
        std::ceil(c_s / (epsilon * epsilon) * d)};
  }
  int32_t samples(int32_t most) const {
    return log_t > std::log(most) ? most : std::max(1, int32_t(std::ceil(std::exp(log_t))));
  }
  int32_t slots(int32_t most) const { return int32_t(std::min<double>(s, most)); }
  // Corollary 1 holds for each query with probability 0.99.
  Promise promise(double epsilon, int32_t samples, int32_t slots) const {
    return {.norm = Promise::Norm::spectral,
            .epsilon = epsilon,
            .probability = 0.99,
            .capped = log_t > std::log(samples) || s > slots};
  }
  // Stored rows of m clusters: m (t + 1) + s.
  double log10_rows(int32_t m) const {
    const double keys = std::log(m) + log_t + std::log1p(std::exp(-log_t));
    return (keys + std::log1p(std::exp(std::log(s) - keys))) / std::log(10.0);
  }
};

}  // namespace kvreplay
