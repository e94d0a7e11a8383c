#pragma once
#include "config/run_config.hpp"
#include "stub_methods.hpp"

// Shared by the tests of configurations and their fuzzer: a registry of two methods, and a trace.

namespace config_stub {

inline const kvreplay::Registry& methods() {
  static const kvreplay::Registry all = {stub::method<stub::Keeper>(), stub::method<stub::Pooler>()};
  return all;
}

// A trace a.h5 with one prompt p0, half of it recorded as prompt.
inline kvreplay::TraceInfo trace_of(int32_t layers, int64_t tokens) {
  kvreplay::LayerInfo layer;
  layer.q_heads = 4;
  layer.kv_heads = 2;
  layer.head_dim = layer.v_head_dim = 8;
  layer.tokens = layer.query_rows = tokens;
  layer.rope_recorded = true;
  kvreplay::PromptInfo prompt;
  prompt.id = "p0";
  prompt.tokens = tokens;
  prompt.n_prompt = tokens / 2;
  for (int32_t i = 0; i < layers; ++i) {
    layer.layer = i;
    prompt.layers.push_back(layer);
    prompt.layer_numbers.push_back(i);
  }
  kvreplay::TraceInfo trace;
  trace.path = "a.h5";
  trace.n_layers = layers;
  trace.prompts = {prompt};
  return trace;
}

}  // namespace config_stub
