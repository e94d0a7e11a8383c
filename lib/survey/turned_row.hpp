#pragma once
#include "core/rotary.hpp"

namespace kvreplay {

// Applies a layer's rotary embedding to a key or query once more (times 1) or removes it (times -1), with the attention
// factor.
inline void turn_row(const RopeView& rope, double position, int32_t times, double* row) {
  for (int32_t c = 0; c < 2 * rope.pairs; ++c)
    if (times > 0) row[c] *= rope.attention_factor;
    else row[c] /= rope.attention_factor;
  rotate(SerialTeam{}, rope, times * position, row);
}

}  // namespace kvreplay
