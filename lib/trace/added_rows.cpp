#include "trace/added_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "trace/shape_checks.hpp"
#include "trace/tensor_read.hpp"

namespace kvreplay {
namespace {

constexpr const char* kRepeatRemedy = "Record it with kvreplay record --repeat";

// Reads where each chunk begins and the last one ends: ascending, from 0 to at most `last`.
std::vector<int32_t> boundaries(const h5::Node& group, const char* name, int64_t last) {
  if (!h5::has_child(group, name)) h5::fail(group.where() + "/" + name, fmt::format("is missing. {}", kRepeatRemedy));
  const h5::Array array = h5::open_array(group, name);
  const std::vector<int64_t> values = h5::read_integers(array);
  if (array.shape.size() != 1 || values.size() < 2)
    h5::fail(array.node, fmt::format("has shape {}, it must be [chunks + 1]", h5::describe(array.shape)));
  if (values.front() < 0 || values.back() > last)
    h5::fail(array.node,
             fmt::format("goes from {} to {}, it must stay between 0 and {}", values.front(), values.back(), last));
  if (const auto at = std::ranges::adjacent_find(values, std::greater_equal<>()); at != values.end())
    h5::fail(array.node, fmt::format("must ascend, but {} follows {}", at[1], at[0]));
  return {values.begin(), values.end()};
}

void check_layer(const h5::Node& prompt_node, const LayerInfo& layer, const RepeatInfo& repeat) {
  if (layer.repeat_rows == 0 || layer.repeat_rows == repeat.row_count()) return;
  h5::fail(fmt::format("{}/layers/{:03}/repeat_q", prompt_node.where(), layer.layer),
           repeat.rows.empty()
               ? fmt::format("needs the group repeat of the prompt, which says which tokens these rows repeat. {}",
                             kRepeatRemedy)
               : fmt::format("has {} rows, but repeat/rows ends at {}", layer.repeat_rows, repeat.row_count()));
}

}  // namespace

void read_repeat_rows(const h5::Node& node, LayerInfo& layer) {
  const bool has_q = h5::has_child(node, "repeat_q"), has_k = h5::has_child(node, "repeat_k");
  layer.has_repeat_norm = h5::has_child(node, "repeat_in_norm");
  if (has_q != has_k || (layer.has_repeat_norm && !has_q))
    h5::fail(node, fmt::format("holds {} without {}: repeat_q and repeat_k belong together. {}",
                               has_q   ? "repeat_q"
                               : has_k ? "repeat_k"
                                       : "repeat_in_norm",
                               has_q ? "repeat_k" : "repeat_q", kRepeatRemedy));
  if (!has_q) return;
  constexpr const char* kAxes = "[heads, rows, head_dim]";
  const Tensor q = open_tensor(node, "repeat_q", layer.source_dtype, 3, kAxes);
  layer.repeat_rows = q.rows();
  if (layer.repeat_rows < 1) h5::fail(q.array.node, "holds no rows");
  expect_shape(q.array, {layer.q_heads, layer.repeat_rows, layer.query_width()});
  expect_shape(open_tensor(node, "repeat_k", layer.source_dtype, 3, kAxes).array,
               {layer.kv_heads, layer.repeat_rows, layer.head_dim});
  if (layer.has_repeat_norm) expect_floats(h5::open_array(node, "repeat_in_norm"), {layer.repeat_rows});
}

RepeatInfo read_repeat(const h5::Node& node, const PromptInfo& prompt) {
  RepeatInfo repeat;
  if (h5::has_child(node, "repeat")) {
    const h5::Node group = h5::open_child(node, "repeat");
    if (!group.is_group()) h5::fail(group, "is not a group");
    repeat.context_tokens = h5::integer(group, "context_tokens", 1, prompt.tokens).value_or(prompt.n_prompt);
    repeat.rows = boundaries(group, "rows", INT32_MAX);
    repeat.ctx = boundaries(group, "ctx", prompt.tokens);
    const std::string ctx = group.where() + "/ctx";
    if (repeat.ctx.size() != repeat.rows.size())
      h5::fail(ctx, fmt::format("has {} chunks, but rows has {}", repeat.ctx.size() - 1, repeat.rows.size() - 1));
    if (repeat.rows.front() != 0) h5::fail(group.where() + "/rows", "must begin with 0");
    if (repeat.ctx.back() != repeat.context_tokens)
      h5::fail(ctx, fmt::format("ends at {}, but the attribute context_tokens is {} (by default n_prompt)",
                                repeat.ctx.back(), repeat.context_tokens));
    if (h5::has_child(group, "tokens")) expect_integers(h5::open_array(group, "tokens"), repeat.row_count());
  }
  for (const LayerInfo& layer : prompt.layers) check_layer(node, layer, repeat);
  return repeat;
}

namespace {

constexpr const char* kLookaheadRemedy = "Record it with kvreplay record --lookahead";

void check_layer(const h5::Node& prompt_node, const LayerInfo& layer, const LookaheadInfo& lookahead) {
  if (layer.lookahead_rows == 0) return;
  const std::string where = fmt::format("{}/layers/{:03}/lookahead_q", prompt_node.where(), layer.layer);
  if (lookahead.rows == 0)
    h5::fail(where, fmt::format("needs the group lookahead of the prompt, which says after which tokens these rows "
                                "were generated. {}",
                                kLookaheadRemedy));
  if (layer.lookahead_rows != lookahead.rows)
    h5::fail(where, fmt::format("has {} rows, but lookahead/tokens has {}", layer.lookahead_rows, lookahead.rows));
  // The window hides part of the prompt from these rows, and the file cannot record which cut they were generated
  // after.
  if (layer.window().any())
    h5::fail(where,
             fmt::format("stands in a layer with {} of {}, whose cache is not cut this way: leave the dataset out",
                         layer.sliding_window > 0 ? "a sliding window" : "chunks", layer.window().most()));
}

}  // namespace

void read_lookahead_rows(const h5::Node& node, LayerInfo& layer) {
  if (!h5::has_child(node, "lookahead_q")) return;
  const Tensor q = open_tensor(node, "lookahead_q", layer.source_dtype, 3, "[heads, rows, head_dim]");
  layer.lookahead_rows = q.rows();
  if (layer.lookahead_rows < 1) h5::fail(q.array.node, "holds no rows");
  expect_shape(q.array, {layer.q_heads, layer.lookahead_rows, layer.query_width()});
}

LookaheadInfo read_lookahead(const h5::Node& node, const PromptInfo& prompt) {
  LookaheadInfo lookahead;
  if (h5::has_child(node, "lookahead")) {
    const h5::Node group = h5::open_child(node, "lookahead");
    if (!group.is_group()) h5::fail(group, "is not a group");
    if (!h5::has_child(group, "tokens"))
      h5::fail(group.where() + "/tokens", fmt::format("is missing. {}", kLookaheadRemedy));
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
