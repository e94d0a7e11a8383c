#pragma once
#include "exact/tile.hpp"

namespace kvreplay {

// Scores that one query head of a row gives to the tokens it sees (core/output_scores.hpp). Needs the tile's outputs.
// to: [tokens of the row]; entries of unseen tokens are not written.
template <class Real>
void score_row(const HeadStream<Real>& stream, const Tile<Real>& tile, int32_t head, int32_t row, TokenScore which,
               double* to);

}  // namespace kvreplay
