#pragma once
#include "trace/h5_walk.hpp"
#include "trace/trace_info.hpp"

// Rows that the model generated after a cut prompt (`kvreplay record --lookahead`): how the prompt was cut, and a check
// that each layer holds equally many rows. All functions throw h5::Problem.

namespace kvreplay {

// Reads the shape of `lookahead_q`, if the layer has it. The layer's attributes must be read before.
void read_lookahead_rows(const h5::Node& layer_node, LayerInfo& layer);

// Reads the prompt's group `lookahead` and checks it against the prompt's layers, which must be read before.
LookaheadInfo read_lookahead(const h5::Node& prompt_node, const PromptInfo& prompt);

}  // namespace kvreplay
