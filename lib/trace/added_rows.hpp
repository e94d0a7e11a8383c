#pragma once
#include "trace/h5_walk.hpp"
#include "trace/trace_info.hpp"

// Rows that the recorder adds to a prompt's: of a context that the model repeated (`kvreplay record --repeat`), and
// rows that it generated after a cut prompt (`--lookahead`). Each layer must hold equally many. All functions throw
// h5::Problem.

namespace kvreplay {

// Reads the shapes of `repeat_q`, `repeat_k` and `repeat_in_norm`, if the layer has them.
void read_repeat_rows(const h5::Node& layer_node, LayerInfo& layer);

// Reads the prompt's group `repeat` and checks it against the prompt's layers, which must be read before.
RepeatInfo read_repeat(const h5::Node& prompt_node, const PromptInfo& prompt);

// Reads the shape of `lookahead_q`, if the layer has it. The layer's attributes must be read before.
void read_lookahead_rows(const h5::Node& layer_node, LayerInfo& layer);

// Reads the prompt's group `lookahead` and checks it against the prompt's layers, which must be read before.
LookaheadInfo read_lookahead(const h5::Node& prompt_node, const PromptInfo& prompt);

}  // namespace kvreplay
