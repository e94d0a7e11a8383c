#include "trace/content_id.hpp"

#include <fmt/format.h>

#include "base/sha256.hpp"
#include "trace/tensor_read.hpp"
#include "trace/trace_metadata.hpp"

namespace kvreplay {
namespace {

using Digest = std::function<std::string(const h5::Array&)>;

void add_arrays(Sha256& sum, const h5::Node& group, std::initializer_list<const char*> names, const Digest& digest) {
  for (const char* name : names)
    if (h5::has_child(group, name)) {
      const h5::Array array = h5::open_array(group, name);
      sum.update(fmt::format("{} {} {} {}\n", name, array.element_bytes, h5::describe(array.shape), digest(array)));
    }
}

void add_branches(Sha256& sum, const h5::Node& root, const PromptInfo& prompt, const Digest& digest) {
  if (!prompt.branches.empty()) sum.update(fmt::format("branches behind {}\n", prompt.context_tokens));
  for (size_t b = 0; b < prompt.branches.size(); ++b) {
    sum.update(fmt::format("{} {}\n", prompt.branches[b].id, prompt.branches[b].input_tokens));
    add_arrays(sum, h5::open_path(root, branch_path(prompt.id, b)), {"position_ids", "tokens"}, digest);
    for (const LayerInfo& layer : prompt.layers)
      add_arrays(sum, h5::open_path(root, branch_layer_path(prompt.id, b, layer.layer)),
                 {"k", "latent", "q", "rope_k", "v"}, digest);
  }
}

std::string rope_line(const LayerInfo& layer) {
  if (!layer.rope) return layer.rope_recorded ? "none" : "unknown";
  return fmt::format("{} {} {} {}", layer.rope->attention_factor,
                     layer.rope->layout == Rope::Layout::half_split ? "half" : "pairs", layer.rope->rotary_dims,
                     fmt::join(layer.rope->inv_freq, " "));
}

}  // namespace

std::string array_sha256(const h5::Array& array) {
  Sha256 sum;
  for_each_piece(array, [&](std::span<const std::byte> piece) { sum.update(piece); });
  return sum.hex();
}

std::string content_id(const h5::Node& root, const TraceInfo& info, const Digest& digest) {
  Sha256 sum;
  sum.update(fmt::format("{} {}\n", info.model, info.n_layers));
  for (const PromptInfo& prompt : info.prompts) {
    sum.update(fmt::format("{} {}\n", prompt.id, prompt.n_prompt));
    add_arrays(sum, h5::open_path(root, "prompts/" + prompt.id), {"position_ids", "token_class", "tokens"}, digest);
    if (prompt.repeat.chunks() > 0)
      add_arrays(sum, h5::open_path(root, "prompts/" + prompt.id + "/repeat"), {"ctx", "rows", "tokens"}, digest);
    if (prompt.lookahead.rows > 0)
      add_arrays(sum, h5::open_path(root, "prompts/" + prompt.id + "/lookahead"), {"tokens"}, digest);
    if (prompt.segments.count() > 0)
      add_arrays(sum, h5::open_path(root, "prompts/" + prompt.id + "/segments"), {"kind", "start"}, digest);
    add_branches(sum, root, prompt, digest);
    for (const LayerInfo& layer : prompt.layers) {
      sum.update(fmt::format("{} {} {} {} {} {} {}\n", layer.layer, name_of(layer.dtype), layer.scaling,
                             layer.sliding_window, layer.softcap, layer.q_prescaled, rope_line(layer)));
      if (layer.attention_chunk > 0) sum.update(fmt::format("attention_chunk {}\n", layer.attention_chunk));
      if (layer.kv_layer >= 0) sum.update(fmt::format("kv_layer {}\n", layer.kv_layer));
      add_arrays(sum, h5::open_path(root, layer_path(prompt.id, layer.layer)),
                 {"g", "g_rows", "k", "latent", "lookahead_q", "out", "q", "q_pos", "repeat_in_norm", "repeat_k",
                  "repeat_q", "rope_k", "sinks", "up_k", "up_v", "v"},
                 digest);
    }
  }
  return sum.hex();
}

}  // namespace kvreplay
