#pragma once
#include <span>
#include <vector>

#include "exact/head_stream.hpp"
#include "exact/tile.hpp"

namespace kvreplay {

// Adds the next query head to the stream's output norms. weights: the head's part of the output projection, [v_dim,
// hidden].
template <class Real>
void add_output_norms(HeadStream<Real>& stream, std::span<const float> weights);

// ||v W||_1 of the prompt's tokens, averaged over query heads first_head .. first_head + heads - 1.
template <class Real>
std::vector<double> mean_output_norms(const HeadStream<Real>& stream, int32_t first_head, int32_t heads);

// Scores that one query head of a row gives to the tokens it sees (core/token.hpp). Needs the tile's outputs.
// to: [tokens of the row]; entries of unseen tokens are not written.
template <class Real>
void score_row(const HeadStream<Real>& stream, const Tile<Real>& tile, int32_t head, int32_t row, TokenScore which,
               double* to);

}  // namespace kvreplay
