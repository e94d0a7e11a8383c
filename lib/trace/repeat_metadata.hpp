#pragma once
#include "trace/h5_walk.hpp"
#include "trace/trace_info.hpp"

// A context that the model repeated (kvdump --repeat): which rows of which chunk, and that each layer holds them. All
// throw h5::Problem.

namespace kvreplay {

// Shapes of `repeat_q`, `repeat_k` and `repeat_in_norm` in a layer, where they are there.
void read_repeat_rows(const h5::Node& layer_node, LayerInfo& layer);

// The prompt's group `repeat`, held against its layers, which are read by then.
RepeatInfo read_repeat(const h5::Node& prompt_node, const PromptInfo& prompt);

}  // namespace kvreplay
