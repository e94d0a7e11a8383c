#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trace/trace.hpp"
#include "trace/trace_info.hpp"

// Metadata that is valid but probably wrong, one line each. No tensor is read, and a trace may still be correct.

namespace kvreplay {

// Layers with more kv heads than tokens, if no token ids confirm the number of tokens.
std::vector<std::string> swapped_axes(const TraceInfo& info);
// Layers whose scaling is far from 1/sqrt(head_dim). Skips layers that record `out`, which tests the scaling, and
// traces of the recorder, which takes the scaling from the model.
std::vector<std::string> far_scalings(const TraceInfo& info);

// How positions say that rows are not the tokens of one whole sequence, and what to do about it; "" for 0, 1, 2, ...
std::string odd_positions(std::span<const int64_t> positions);
std::vector<std::string> odd_positions(const TraceInfo& info);

// Attributes and datasets that no reader uses, one line each, with the most likely intended name. In a layer: all of
// them. Elsewhere: only those close to a name that is missing. Throws TraceError if the file cannot be read.
std::vector<std::string> unknown_names(const Trace& trace);

}  // namespace kvreplay
