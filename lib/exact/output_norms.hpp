#pragma once
#include <vector>

#include "exact/head_stream.hpp"

namespace kvreplay {

// How long the values of tokens first .. first + count - 1 are behind the output projection of one query head,
// ||v W||_1 or ||v W||_2. The stream holds the projection (HeadRequest::output_weights).
enum class VectorNorm { l1, l2 };
template <class Real>
std::vector<double> output_norms(const HeadStream<Real>& stream, int32_t head, int32_t first, int32_t count,
                                 VectorNorm norm);

// Of the prompt's tokens, mean over query heads first_head .. first_head + heads - 1.
template <class Real>
std::vector<double> mean_output_norms(const HeadStream<Real>& stream, int32_t first_head, int32_t heads);

}  // namespace kvreplay
