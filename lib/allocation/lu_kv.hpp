#pragma once
#include <vector>

#include "core/budget_curves.hpp"
#include "exact/head_stream.hpp"

namespace kvreplay {

// What a head says of itself where lu_kv shares the budget: into its extras the tokens it starts with, then the slopes
// of its curve [prompt]. future_sums [heads, tokens]: attention of the scored decode rows, which makes it an oracle.
template <class Real>
void add_lu_kv_slopes(const LuKv& rule, const HeadStream<Real>& stream, const std::vector<double>& future_sums,
                      HeadScores& head);

// Tokens of each head, `budget` on average.
std::vector<int32_t> lu_kv_tokens(const std::vector<HeadScores>& heads, int32_t budget);
// Where the heads spoke of another prompt of `prompt` tokens than the one of `replayed` tokens that has the budget:
// tokens of theirs, the budget and what every head starts with being shares of a prompt.
std::vector<int32_t> lu_kv_tokens(const std::vector<HeadScores>& heads, int32_t budget, int32_t prompt,
                                  int32_t replayed);

}  // namespace kvreplay
