#pragma once
#include <cstdint>
#include <optional>
#include <span>

namespace kvreplay {

// The spread of a set of points [n, dim] around its mean.
struct Spread {
  double rms = 0;  // root mean square distance to the mean
  // Shares of the variance along the singular directions of the centred points. nullopt if all points are equal.
  std::optional<double> spectral_share_16;  // sum of the 16 largest shares
  std::optional<double> effective_rank;     // exp of the entropy of the shares (Roy and Vetterli 2007)
};
Spread spread_of(std::span<const double> points, int32_t dim);

}  // namespace kvreplay
