#pragma once
#include "trace/h5_walk.hpp"
#include "trace/trace_info.hpp"

namespace kvreplay {

// Reads the shapes of `g`, `g_recorded` and `g_answer`, gradients of log-likelihoods with respect to the attention
// output, if the layer has `g`. The layer's other shapes must be read before. Throws h5::Problem.
void read_gradient_shapes(const h5::Node& layer_node, LayerInfo& layer);

}  // namespace kvreplay
