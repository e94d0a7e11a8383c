#pragma once
#include <cstdint>
#include <vector>

namespace kvreplay {

// Levels that quantise a density with the least mean square error (Lloyd and Max): a number takes the nearest of them,
// and each is the mean of the numbers that take it. Ascending, [2^bits].

// The normal distribution, variance 1.
std::vector<double> gauss_levels(int32_t bits);
// A coordinate of a random unit vector of `width` numbers, density proportional to (1 - x^2)^((width - 3) / 2), times
// sqrt(width).
std::vector<double> beta_levels(int32_t bits, int32_t width);
// An angle of PolarQuant at `level`: the middles of equal bins of [0, 2 pi) at level 1; later in [0, pi / 2], density
// proportional to sin(2 x)^(2^(level - 1) - 1).
std::vector<double> angle_levels(int32_t level, int32_t bits);

}  // namespace kvreplay
