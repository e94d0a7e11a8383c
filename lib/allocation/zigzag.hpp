#pragma once
#include <vector>

#include "core/common_options.hpp"
#include "core/share.hpp"

// ZigZagKV, arXiv 2412.09036: a layer whose scores are spread over many tokens gets a larger budget.

namespace kvreplay {

// Sets a head's numbers: the tokens that hold `mass` of its scores (LMBA), and those that it starts with.
void add_mass_tokens(const ZigZag& rule, HeadScores& head);

// Tokens of each head, alike in a layer: lo + (budget - lo) * layers * LMBA / sum of LMBA, none above `most`. LMBA of a
// layer is the mean over its heads.
std::vector<int32_t> zigzag_tokens(const std::vector<HeadScores>& heads, int32_t budget, int32_t most);

}  // namespace kvreplay
