#pragma once
#include <string>
#include <vector>

#include "trace/trace_info.hpp"

// Metadata that is valid but probably wrong, one line for each prompt. No tensor is read, and a trace may still be
// correct.

namespace kvreplay {

// Layers with more kv heads than tokens, if no token ids confirm the number of tokens.
std::vector<std::string> swapped_axes(const TraceInfo& info);
// Layers whose scaling is far from 1/sqrt(head_dim). Skips layers that record `out`, which tests the scaling, and
// traces of the recorder, which takes the scaling from the model.
std::vector<std::string> far_scalings(const TraceInfo& info);

}  // namespace kvreplay
