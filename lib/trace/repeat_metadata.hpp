#pragma once
#include "trace/h5_walk.hpp"
#include "trace/trace_info.hpp"

// A context that the model repeated (`kvreplay record --repeat`): the rows of each chunk, and a check that each layer
// holds them. All functions throw h5::Problem.

namespace kvreplay {

// Reads the shapes of `repeat_q`, `repeat_k` and `repeat_in_norm`, if the layer has them.
void read_repeat_rows(const h5::Node& layer_node, LayerInfo& layer);

// Reads the prompt's group `repeat` and checks it against the prompt's layers, which must be read before.
RepeatInfo read_repeat(const h5::Node& prompt_node, const PromptInfo& prompt);

}  // namespace kvreplay
