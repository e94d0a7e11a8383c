#pragma once
#include "config/run_config.hpp"

// Two methods and a trace that exist for the tests of configurations only.

namespace config_stub {

using kvreplay::Method;
using kvreplay::ParameterSpec;
using Kind = kvreplay::ParameterSpec::Kind;

// What make_method() fills in for a policy.
inline void set_hooks(Method& m, bool observes) {
  m.default_options = [info = m.info](const nlohmann::json&) {
    kvreplay::CommonOptions options;
    options.phase = info.default_phase;
    options.positions = info.default_positions;
    return options;
  };
  m.warning = [info = m.info](const nlohmann::json&, const kvreplay::CommonOptions&) { return info.warning; };
  m.random = [](const nlohmann::json&) { return false; };
  m.rng_arrays = [](const nlohmann::json&, const kvreplay::MethodContext&) {
    return std::vector<kvreplay::RngArray>{};
  };
  m.needs = [](const nlohmann::json&, const kvreplay::MethodContext&) { return kvreplay::PromptNeeds{}; };
  m.observes = [observes](const nlohmann::json&, const kvreplay::CommonOptions&) { return observes; };
}

// Sinks and a recent window inside the budget; both phases, cache positions by default.
inline Method keeper() {
  Method m;
  m.info = {.name = "keeper",
            .title = "",
            .source = "",
            .tier = 1,
            .memory = "",
            .deviation = "",
            .default_positions = kvreplay::Positions::cache,
            .alias = "guardian"};
  m.parameters = {{"sinks", Kind::integer, 0, kvreplay::kManyTokens, {}, 4, "4", ""},
                  {"recent", Kind::integer, 0, kvreplay::kManyTokens, {}, nullptr, "B - sinks", ""},
                  {"share", Kind::real, 1e-12, 1, {}, 0.5, "0.5", ""},
                  {"strict", Kind::boolean, 0, 1, {}, false, "false", ""},
                  {"first", Kind::integer, 0, 100, {"random"}, 0, "0", ""}};
  m.resolve = [](const nlohmann::json& params, const kvreplay::MethodContext& context) {
    nlohmann::json all = params;
    if (all["recent"].is_null()) all["recent"] = context.budget - all["sinks"].get<int32_t>();
    if (all["recent"].get<int32_t>() < 0)
      throw kvreplay::ParameterError("sinks", "sinks " + all["sinks"].dump() + " exceed the budget of " +
                                                  std::to_string(context.budget));
    return all;
  };
  m.looks_at_queries = true;
  set_hooks(m, true);
  return m;
}

// One phase, no budget.
inline Method pooler() {
  Method m;
  m.info = {.name = "pooler",
            .title = "",
            .source = "",
            .tier = 2,
            .memory = "",
            .deviation = "",
            .streams = false,
            .default_phase = kvreplay::Phase::oneshot,
            .takes_budget = false};
  m.parameters = {{"kernel", Kind::integer, 1, 9, {}, 7, "7", ""},
                  {"pool", Kind::choice, 0, 0, {"max", "avg"}, "max", "max", ""}};
  m.resolve = [](const nlohmann::json& params, const kvreplay::MethodContext&) { return params; };
  set_hooks(m, false);
  return m;
}

inline const kvreplay::Registry& methods() {
  static const kvreplay::Registry all = {keeper(), pooler()};
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
