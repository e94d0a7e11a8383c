#pragma once
#include "trace/h5_walk.hpp"
#include "trace/trace_info.hpp"

// Rows that the model generated behind a cut prompt (kvdump --lookahead): how the prompt was cut, and that each layer
// holds as many. All throw h5::Problem.

namespace kvreplay {

// Shape of `lookahead_q` in a layer whose attributes are read, where it is there.
void read_lookahead_rows(const h5::Node& layer_node, LayerInfo& layer);

// The prompt's group `lookahead`, held against its layers, which are read by then.
LookaheadInfo read_lookahead(const h5::Node& prompt_node, const PromptInfo& prompt);

}  // namespace kvreplay
