#include "trace/turns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.hpp"
#include "trace/shape_checks.hpp"
#include "trace/tensor_read.hpp"

namespace kvreplay {
namespace {

constexpr int64_t kLastKind = 2;        // context, input, output
constexpr size_t kMostBranches = 1000;  // names have three digits

h5::Array needed_array(const h5::Node& group, const char* name, const char* says) {
  if (!h5::has_child(group, name)) h5::fail(group.where() + "/" + name, fmt::format("is missing. It says {}", says));
  return h5::open_array(group, name);
}

// ---- segments

std::vector<int32_t> segment_starts(const h5::Node& group, int64_t tokens) {
  const h5::Array array = needed_array(group, "start", "where each segment begins");
  const std::vector<int64_t> start = h5::read_integers(array);
  if (array.shape.size() != 1 || start.size() < 2)
    h5::fail(array.node, fmt::format("has shape {}, it must be [segments + 1]", h5::describe(array.shape)));
  if (const auto at = std::ranges::adjacent_find(start, std::greater_equal<>()); at != start.end())
    h5::fail(array.node, fmt::format("must ascend, but {} follows {}", at[1], at[0]));
  if (start.front() != 0 || start.back() != tokens)
    h5::fail(array.node, fmt::format("goes from {} to {}, it must go from 0 to the prompt's {} tokens", start.front(),
                                     start.back(), tokens));
  return {start.begin(), start.end()};
}

std::vector<SegmentKind> segment_kinds(const h5::Node& group, size_t count) {
  const h5::Array array = needed_array(group, "kind", "what each segment is: 0 context, 1 input, 2 output");
  expect_integers(array, static_cast<int64_t>(count));
  std::vector<SegmentKind> kinds;
  for (const int64_t kind : h5::read_integers(array)) {
    if (kind < 0 || kind > kLastKind)
      h5::fail(array.node,
               fmt::format("holds {} at {}, it must be 0 (context), 1 (input) or 2 (output)", kind, kinds.size()));
    kinds.push_back(static_cast<SegmentKind>(kind));
  }
  if (kinds.front() == SegmentKind::output)
    h5::fail(array.node, "begins with 2: a model can say nothing before it was given a context (0) or an input (1)");
  return kinds;
}

// The attribute `names`, a list in JSON; empty if it is missing.
std::vector<std::string> segment_names(const h5::Node& group, size_t count) {
  const auto text = h5::text(group, "names");
  if (!text) return {};
  const nlohmann::json list = nlohmann::json::parse(*text, nullptr, false);
  std::vector<std::string> names;
  if (list.is_array() && list.size() == count)
    for (const auto& name : list)
      if (name.is_string() && is_printable_utf8(name.get<std::string>())) names.push_back(name.get<std::string>());
  if (names.size() != count)
    h5::fail(group,
             fmt::format("attribute names must be a JSON list of {} printable texts, one for each segment", count));
  return names;
}

// ---- branches

int64_t first_position_behind(std::span<const int64_t> positions, int64_t context_tokens) {
  return positions.empty() ? context_tokens : positions[static_cast<size_t>(context_tokens - 1)] + 1;
}

void check_positions(const h5::Node& branch, int64_t tokens, int64_t first, int64_t context_tokens) {
  if (!has_integers(branch, "position_ids", tokens)) return;
  const h5::Array array = h5::open_array(branch, "position_ids");
  const std::vector<int64_t> positions = h5::read_integers(array);
  for (size_t i = 0; i < positions.size(); ++i)
    if (const int64_t expected = first + static_cast<int64_t>(i); positions[i] != expected)
      h5::fail(array.node, fmt::format("holds {} at {}, it must be {}: a branch continues the {} tokens of the context",
                                       positions[i], i, expected, context_tokens));
}

// Rows of a tensor of a branch, which is like the prompt's tensor of this name. rows: how many it must have; 0: any.
int64_t rows_like(const h5::Node& prompt_layer, const h5::Node& node, const char* name, const LayerInfo& layer,
                  int64_t rows) {
  if (!h5::has_child(node, name))
    h5::fail(node.where() + "/" + name, fmt::format("is missing. A branch needs {} in each layer", name));
  const bool has_heads = h5::open_array(prompt_layer, name).shape.size() == 3;
  const char* axes = has_heads ? "[heads, tokens, head_dim]" : "[tokens, width]";
  const Tensor like = open_tensor(prompt_layer, name, layer.source_dtype, has_heads ? 3 : 2, axes);
  const Tensor own = open_tensor(node, name, layer.source_dtype, has_heads ? 3 : 2, axes);
  if (own.dtype != like.dtype)
    h5::fail(own.array.node,
             fmt::format("holds {}, but {} of the prompt holds {}", name_of(own.dtype), name, name_of(like.dtype)));
  if (own.rows() < 1) h5::fail(own.array.node, "holds no rows");
  std::vector<int64_t> shape = like.array.shape;
  shape[shape.size() - 2] = rows == 0 ? own.rows() : rows;
  expect_shape(own.array, shape);
  return own.rows();
}

// A branch's layer is the prompt's, so what it says of itself must be what the prompt's says.
void check_attributes(const h5::Node& node, const LayerInfo& layer) {
  for (const auto& [name, value] : {std::pair<const char*, double>{"scaling", layer.scaling},
                                    {"sliding_window", layer.sliding_window},
                                    {"attention_chunk", layer.attention_chunk},
                                    {"softcap", layer.softcap}})
    if (const auto own = h5::number(node, name); own && *own != value)
      h5::fail(node,
               fmt::format("attribute {} is {}, but the prompt's layer {} has {}", name, *own, layer.layer, value));
}

int64_t read_branch_layer(const h5::Node& prompt_node, const h5::Node& node, const LayerInfo& layer, int64_t rows) {
  const h5::Node of_prompt = h5::open_path(prompt_node, fmt::format("layers/{:03}", layer.layer));
  check_attributes(node, layer);
  const auto names = layer.is_latent() ? std::vector{"latent", "rope_k", "q"} : std::vector{"k", "v", "q"};
  for (const char* name : names) rows = rows_like(of_prompt, node, name, layer, rows);
  return rows;
}

int64_t read_branch_layers(const h5::Node& prompt_node, const h5::Node& branch, const PromptInfo& prompt) {
  const std::string where = branch.where() + "/layers";
  if (!h5::has_child(branch, "layers")) h5::fail(where, "is missing");
  const h5::Node layers = h5::open_child(branch, "layers");
  std::vector<std::string> expected;
  for (const int32_t layer : prompt.layer_numbers) expected.push_back(fmt::format("{:03}", layer));
  if (const auto held = h5::members(layers); held != expected)
    h5::fail(where, fmt::format("holds the layers {}, the prompt holds {}: a branch needs the same ones",
                                held.empty() ? "(none)" : join(held), join(expected)));
  int64_t rows = 0;
  for (const LayerInfo& layer : prompt.layers)
    rows = read_branch_layer(prompt_node, h5::open_child(layers, fmt::format("{:03}", layer.layer)), layer, rows);
  return rows;
}

BranchInfo read_branch(const h5::Node& prompt_node, const h5::Node& node, const std::string& id,
                       const PromptInfo& prompt) {
  BranchInfo branch;
  branch.id = id;
  if (!node.is_group()) h5::fail(node, "is not a group");
  branch.tokens = read_branch_layers(prompt_node, node, prompt);
  const auto input = h5::integer(node, "input_tokens", 0, branch.tokens);
  if (!input) h5::fail(node, "the attribute input_tokens is missing. Write the number of tokens of the question");
  branch.input_tokens = *input;
  branch.name = h5::text(node, "name").value_or("");
  if (!is_printable_utf8(branch.name)) h5::fail(node, "attribute name holds control characters");
  branch.has_tokens = has_integers(node, "tokens", branch.tokens);
  return branch;
}

}  // namespace

void read_segments(const h5::Node& prompt_node, PromptInfo& prompt) {
  if (!h5::has_child(prompt_node, "segments")) return;
  const h5::Node group = h5::open_child(prompt_node, "segments");
  if (!group.is_group()) h5::fail(group, "is not a group");
  SegmentsInfo& segments = prompt.segments;
  segments.start = segment_starts(group, prompt.tokens);
  segments.kind = segment_kinds(group, segments.start.size() - 1);
  segments.names = segment_names(group, segments.count());
  prompt.n_prompt = segments.first_input_end();
}

void read_branches(const h5::Node& prompt_node, std::span<const int64_t> positions, PromptInfo& prompt) {
  if (!h5::has_child(prompt_node, "branches")) return;
  const h5::Node group = h5::open_child(prompt_node, "branches");
  if (!group.is_group()) h5::fail(group, "is not a group");
  prompt.context_tokens = h5::integer(group, "context_tokens", 1, prompt.tokens).value_or(prompt.n_prompt);
  const int64_t first = first_position_behind(positions, prompt.context_tokens);
  const std::vector<std::string> names = h5::members(group);
  if (names.empty()) h5::fail(group, "holds no branches");
  for (const std::string& id : names) {
    const size_t number = prompt.branches.size();
    if (number == kMostBranches || id != fmt::format("{:03}", number))
      h5::fail(group.where() + "/" + id,
               fmt::format("is no branch: their names are 000, 001, ... up to 999, without a gap"));
    const h5::Node node = h5::open_child(group, id);
    prompt.branches.push_back(read_branch(prompt_node, node, id, prompt));
    check_positions(node, prompt.branches.back().tokens, first, prompt.context_tokens);
  }
}

}  // namespace kvreplay
