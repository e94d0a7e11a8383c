#pragma once
#include <cstdint>
#include <vector>

namespace kvreplay {

// Memory that the caches of a thread use one after another, while each is replayed step by step.
template <class Real>
struct Workspace {
  std::vector<Real> e, coefficients;  // for one step
  std::vector<double> group, by_head, log_sums;
  std::vector<uint8_t> chosen;
  std::vector<double> choice_weights;
  std::vector<Real> tile_coefficients, set_coefficients, tile_values, coded_values;  // for a tile's outputs
  std::vector<Real> products, queries;                                               // for rows without a strip
};

}  // namespace kvreplay
