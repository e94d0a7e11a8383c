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

}  // namespace kvreplay
