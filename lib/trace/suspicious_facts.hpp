#pragma once
#include <string>
#include <vector>

#include "trace/trace_info.hpp"

// What a trace says of itself that is seldom meant so, one line for each prompt. No tensor is read, and a trace may be
// right all the same.

namespace kvreplay {

// Layers with more kv heads than tokens, where no ids say how many tokens there are.
std::vector<std::string> swapped_axes(const TraceInfo& info);
// Layers whose scaling is far from 1/sqrt(head_dim); not those that record `out`, which tells, nor what kvdump
// recorded, which has asked the model.
std::vector<std::string> far_scalings(const TraceInfo& info);

}  // namespace kvreplay
