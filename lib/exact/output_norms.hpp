#pragma once
#include <span>
#include <vector>

#include "exact/head_stream.hpp"

namespace kvreplay {

// Adds the next query head to the stream's output norms. weights: the head's part of the output projection, [v_dim,
// hidden].
template <class Real>
void add_output_norms(HeadStream<Real>& stream, std::span<const float> weights);

// ||v W||_1 of the prompt's tokens, averaged over query heads first_head .. first_head + heads - 1.
template <class Real>
std::vector<double> mean_output_norms(const HeadStream<Real>& stream, int32_t first_head, int32_t heads);

}  // namespace kvreplay
