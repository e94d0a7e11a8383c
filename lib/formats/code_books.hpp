#pragma once
#include <cstdint>
#include <vector>

namespace kvreplay {

// Levels that quantise a density with the least mean square error (Lloyd-Max). A number takes the nearest level, and
// each level is the mean of the numbers that take it. Ascending, [2^bits].

// Levels for the normal distribution with variance 1.
std::vector<double> gauss_levels(int32_t bits);
// Levels for a coordinate of a random unit vector of `width` numbers, times sqrt(width). The coordinate's density is
// proportional to (1 - x^2)^((width - 3) / 2).
std::vector<double> beta_levels(int32_t bits, int32_t width);
// Levels for an angle of PolarQuant. At level 1: the middles of equal bins of [0, 2 pi). Later levels: for a density on
// [0, pi / 2] proportional to sin(2 x)^(2^(level - 1) - 1).
std::vector<double> angle_levels(int32_t level, int32_t bits);

}  // namespace kvreplay
