#pragma once
#include "core/rotary.hpp"

namespace kvreplay {

// A key or query as its layer's rotary embedding leaves it when it is applied once more (times 1) or taken off (-1).
// The attention factor goes with it.
inline void turn_row(const RopeView& rope, double position, int32_t times, double* row) {
  for (int32_t c = 0; c < 2 * rope.pairs; ++c)
    if (times > 0) row[c] *= rope.attention_factor;
    else row[c] /= rope.attention_factor;
  rotate(SerialTeam{}, rope, times * position, row);
}

}  // namespace kvreplay
