#pragma once
#include <vector>

#include "core/share.hpp"
#include "exact/head_stream.hpp"

namespace kvreplay {

// Writes what lu_kv needs of a head into its extras: the tokens that the head starts with, then the slopes of its curve
// [prompt]. future_sums [heads, tokens]: attention of the scored decode rows, which makes the rule an oracle.
template <class Real>
void add_lu_kv_slopes(const LuKv& rule, const HeadStream<Real>& stream, const std::vector<double>& future_sums,
                      HeadScores& head);

// Tokens of each head, `budget` on average.
std::vector<int32_t> lu_kv_tokens(const std::vector<HeadScores>& heads, int32_t budget);
// For heads that were scored on another prompt: `prompt` is its length, `replayed` the length of the prompt that has
// the budget. Returns tokens of the scored prompt. The budget and each head's initial tokens count as fractions of a
// prompt.
std::vector<int32_t> lu_kv_tokens(const std::vector<HeadScores>& heads, int32_t budget, int32_t prompt,
                                  int32_t replayed);

}  // namespace kvreplay
