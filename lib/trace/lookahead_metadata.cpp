#include "trace/lookahead_metadata.hpp"

#include <fmt/format.h>

#include "trace/shape_checks.hpp"
#include "trace/tensor_read.hpp"

namespace kvreplay {
namespace {

constexpr const char* kRemedy = "Record it with kvreplay record --lookahead";

void check_layer(const h5::Node& prompt_node, const LayerInfo& layer, const LookaheadInfo& lookahead) {
  if (layer.lookahead_rows == 0) return;
  const std::string where = fmt::format("{}/layers/{:03}/lookahead_q", prompt_node.where(), layer.layer);
  if (lookahead.rows == 0)
    h5::fail(where, fmt::format("needs the group lookahead of the prompt, which says after which tokens these rows "
                                "were generated. {}",
                                kRemedy));
  if (layer.lookahead_rows != lookahead.rows)
    h5::fail(where, fmt::format("has {} rows, but lookahead/tokens has {}", layer.lookahead_rows, lookahead.rows));
  // The window hides part of the prompt from these rows, and the file cannot record which cut they were generated
  // after.
  if (layer.sliding_window > 0)
    h5::fail(where,
             fmt::format("stands in a layer with a sliding window of {}, whose cache is not cut this way: leave the "
                         "dataset out",
                         layer.sliding_window));
}

}  // namespace

void read_lookahead_rows(const h5::Node& node, LayerInfo& layer) {
  if (!h5::has_child(node, "lookahead_q")) return;
  const Tensor q = open_tensor(node, "lookahead_q", layer.source_dtype, 3, "[heads, rows, head_dim]");
  layer.lookahead_rows = q.rows();
  if (layer.lookahead_rows < 1) h5::fail(q.array.node, "holds no rows");
  expect_shape(q.array, {layer.q_heads, layer.lookahead_rows, layer.head_dim});
}

LookaheadInfo read_lookahead(const h5::Node& node, const PromptInfo& prompt) {
  LookaheadInfo lookahead;
  if (h5::has_child(node, "lookahead")) {
    const h5::Node group = h5::open_child(node, "lookahead");
    if (!group.is_group()) h5::fail(group, "is not a group");
    if (!h5::has_child(group, "tokens")) h5::fail(group.where() + "/tokens", fmt::format("is missing. {}", kRemedy));
    const h5::Array tokens = h5::open_array(group, "tokens");
    lookahead.rows = tokens.shape.empty() ? 0 : tokens.shape.front();
    if (lookahead.rows < 1) h5::fail(tokens.node, "holds no tokens");
    expect_integers(tokens, lookahead.rows);
    lookahead.context_tokens = h5::integer(group, "context_tokens", 1, prompt.tokens).value_or(prompt.n_prompt);
    lookahead.budget = h5::integer(group, "budget", 1, INT32_MAX).value_or(0);
    lookahead.window = h5::integer(group, "window", 1, INT32_MAX).value_or(0);
    lookahead.kernel = h5::integer(group, "kernel", 1, INT32_MAX).value_or(0);
  }
  for (const LayerInfo& layer : prompt.layers) check_layer(node, layer, lookahead);
  return lookahead;
}

}  // namespace kvreplay
