#include "apps/bounds/measured.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "apps/config_options.hpp"
#include "base/errors.hpp"
#include "exact/oracle_needs.hpp"
#include "survey/clusters.hpp"

namespace kvreplay::app {
namespace {

// The prompt with this id; without an id the first.
const PromptInfo& selected_prompt(const TraceInfo& trace, const std::string& id) {
  std::vector<std::string> held;
  for (const PromptInfo& p : trace.prompts) {
    if (id.empty() || p.id == id) return p;
    held.push_back(p.id);
  }
  throw ConfigError(fmt::format("--prompt {}: the trace has no such prompt. It holds {}", id, fmt::join(held, ", ")));
}

std::vector<int32_t> selected(const char* option, const std::vector<int32_t>& wanted,
                              const std::vector<int32_t>& held) {
  for (const int32_t x : wanted)
    if (std::find(held.begin(), held.end(), x) == held.end())
      throw ConfigError(
          fmt::format("{} {}: the trace does not have it. It holds {}", option, x, fmt::join(held, ", ")));
  return wanted.empty() ? held : wanted;
}

struct Measured {
  const PromptInfo& prompt;
  uint32_t prompt_rank;
  const LayerInfo& layer;
  int32_t tokens;
};

int64_t clusters_of(const HeadStream<double>& stream, double radius) {
  return count_online_clusters(stream.keys, stream.shape.dim, {&radius, 1}, {&stream.tokens, 1}).front();
}

MeasuredHead measured_head(const Trace& trace, const Measured& place, int32_t kv_head, const TraceRequest& request) {
  const LayerInfo& layer = place.layer;
  const auto stream =
      load_head<double>(trace, {{0, place.prompt.id, layer.layer, kv_head}, {place.tokens, place.tokens}});
  MeasuredHead head{layer.layer, kv_head, layer.scaling, {}, 0, {}};
  head.inputs = {{"n", place.tokens},
                 {"d", layer.head_dim},
                 {"v_dim", layer.v_head_dim},
                 {"query_norm", largest_query_norm(stream)},
                 {"key_norm", largest_key_norm(stream)},
                 {"value_norm", stream.max_value_norm}};
  for (const double delta : request.deltas) head.clusters.push_back({{}, delta, clusters_of(stream, delta)});
  if (request.deltas_rel.empty()) return head;
  // Uses the pairs of subgen_stream's seed 0, so that the radius equals subgen_stream's.
  const Rng rng{0, place.prompt_rank, uint32_t(layer.layer), uint32_t(kv_head), {}};
  head.median_key_distance = median_key_distance(stream, rng);
  for (const double f : request.deltas_rel) {
    const double delta = f * head.median_key_distance;
    head.clusters.push_back({f, delta, clusters_of(stream, delta)});
  }
  return head;
}

}  // namespace

MeasuredTrace measured_trace(const TraceRequest& request) {
  const Trace trace = open_trace(request.file);
  const TraceInfo& info = trace.info();
  const PromptInfo& prompt = selected_prompt(info, request.prompt);
  const int32_t tokens = request.tokens.value_or(int32_t(prompt.tokens));
  if (tokens > prompt.tokens || tokens < 2)
    throw ConfigError(
        fmt::format("--tokens {}: prompt {} has {}; give from 2 to that", tokens, prompt.id, prompt.tokens));
  std::vector<int32_t> layers;
  for (const LayerInfo& layer : prompt.layers) layers.push_back(layer.layer);
  layers = selected("--layers", request.layers, layers);

  MeasuredTrace measured;
  for (const int32_t number : layers) {
    const LayerInfo& layer = trace.layer(prompt.id, number);
    std::vector<int32_t> heads(size_t(layer.kv_heads));
    std::iota(heads.begin(), heads.end(), 0);
    heads = selected("--kv-heads", request.kv_heads, heads);
    if (measured.inputs.empty())
      measured.inputs = {{"n", tokens},
                         {"d", layer.head_dim},
                         {"v_dim", layer.v_head_dim},
                         {"prompt_tokens", std::min<double>(double(prompt.n_prompt), tokens)},
                         {"n_layers", std::max(info.n_layers, int32_t(prompt.layers.size()))},
                         {"n_kv_heads", layer.kv_heads},
                         {"bytes", bytes_of(layer.dtype)}};
    for (size_t i = 0; request.heads && i < heads.size(); ++i)
      measured.heads.push_back(measured_head(trace, {prompt, prompt.rank, layer, tokens}, heads[i], request));
  }
  return measured;
}

}  // namespace kvreplay::app
