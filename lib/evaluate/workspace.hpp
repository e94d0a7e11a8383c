#pragma once
#include <cstdint>
#include <vector>

namespace kvreplay {

// Memory that the caches of a thread use in turn, while one of them is replayed step by step.
template <class Real>
struct Workspace {
  std::vector<Real> e, coefficients;  // of a step
  std::vector<double> group, by_head, log_sums;
  std::vector<uint8_t> chosen;
  std::vector<double> choice_weights;
  std::vector<Real> tile_coefficients, set_coefficients, tile_values, coded_values;  // of a tile's outputs
  std::vector<Real> products, queries;                                               // of rows without a strip
};

}  // namespace kvreplay
