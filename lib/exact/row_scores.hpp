#pragma once
#include "exact/tile.hpp"

namespace kvreplay {

// What a row of a tile gives to the tokens that one of its query heads sees (core/output_scores.hpp). Needs the tile's
// outputs. to: [tokens of the row]; tokens that it does not see are left alone.
template <class Real>
void score_row(const HeadStream<Real>& stream, const Tile<Real>& tile, int32_t head, int32_t row, TokenScore which,
               double* to);

}  // namespace kvreplay
