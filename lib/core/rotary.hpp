#pragma once
#include <cmath>

#include "core/team.hpp"
#include "core/token.hpp"

// Rotary embedding of vectors in double (convention C15).

namespace kvreplay {

// (x, y) <- (c x - s y, s x + c y) for pair i of a vector whose coordinates stand `stride` apart.
KVR_FN inline void turn_pair(const RopeView& rope, int32_t i, double c, double s, double* vector, int64_t stride = 1) {
  double& x = vector[(rope.interleaved ? 2 * i : i) * stride];
  double& y = vector[(rope.interleaved ? 2 * i + 1 : i + rope.pairs) * stride];
  const double turned = c * x - s * y;
  y = s * x + c * y;
  x = turned;
}

// Forward by `positions`; back if they are negative. An attention factor is left in.
KVR_FN inline void rotate(const Team auto& team, const RopeView& rope, double positions, double* vector) {
  team.each(rope.pairs, [&](int32_t i) {
    const double angle = positions * rope.inv_freq[i];
    turn_pair(rope, i, std::cos(angle), std::sin(angle), vector);
  });
}

}  // namespace kvreplay
