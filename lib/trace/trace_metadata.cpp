#include "trace/trace_metadata.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "trace/added_rows.hpp"
#include "trace/gradient_rows.hpp"
#include "trace/latent_rows.hpp"
#include "trace/suspicious_facts.hpp"
#include "trace/tensor_read.hpp"
#include "trace/turns.hpp"

namespace kvreplay {
namespace {

using nlohmann::json;

constexpr int64_t kMostTokens = INT32_MAX;  // token indices are int32
constexpr int64_t kMostHeads = 65535;       // a head's random stream is numbered layer * 65536 + head
constexpr int64_t kWidestHead = 65536, kWidestOutput = 1 << 20;
constexpr int64_t kMostLayers = 1000;  // layer names have three digits

[[noreturn]] void fail(const std::string& where, const std::string& what) { throw h5::Problem(where + ": " + what); }

// ---- rope_json

double json_number(const json& object, const char* key, double missing, const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return missing;
  if (!it->is_number() || !std::isfinite(it->get<double>()))
    fail(where, fmt::format("\"{}\" must be a finite number", key));
  return it->get<double>();
}

std::string json_text(const json& object, const char* key, const std::string& missing, const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return missing;
  if (!it->is_string()) fail(where, fmt::format("\"{}\" must be a string", key));
  return it->get<std::string>();
}

Rope::Layout parse_layout(const std::string& layout, const std::string& where) {
  if (layout == "half_split") return Rope::Layout::half_split;
  if (layout == "interleaved") return Rope::Layout::interleaved;
  fail(where, fmt::format("\"layout\" is \"{}\", it must be half_split or interleaved", layout));
}

int32_t parse_rotary_dims(const json& object, int32_t head_dim, std::optional<int64_t> attribute,
                          const std::string& where) {
  const double dims = json_number(object, "rotary_dims", static_cast<double>(attribute.value_or(head_dim)), where);
  if (dims < 2 || dims > head_dim || dims != 2 * std::floor(dims / 2))
    fail(where, fmt::format("\"rotary_dims\" is {}, it must be even and from 2 to head_dim {}", dims, head_dim));
  if (attribute && static_cast<double>(*attribute) != dims)
    fail(where, fmt::format("\"rotary_dims\" is {}, but the layer's attribute rotary_dims is {}", dims, *attribute));
  return static_cast<int32_t>(dims);
}

std::vector<double> parse_frequencies(const json& object, const Rope& rope, const std::string& where) {
  const size_t pairs = static_cast<size_t>(rope.rotary_dims / 2);
  std::vector<double> frequencies(pairs);
  const auto it = object.find("inv_freq");
  if (it == object.end() || it->is_null()) {
    if (rope.type != "default" || rope.theta <= 0)
      fail(where,
           fmt::format("needs \"inv_freq\", or \"theta\" above 0 with type \"default\" (type is \"{}\")", rope.type));
    for (size_t i = 0; i < pairs; ++i)
      frequencies[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / rope.rotary_dims);
    return frequencies;
  }
  if (!it->is_array() || it->size() != pairs)
    fail(where, fmt::format("\"inv_freq\" must be a list of {} numbers, one per pair of the {} rotated dimensions",
                            pairs, rope.rotary_dims));
  for (size_t i = 0; i < pairs; ++i) {
    const json& value = (*it)[i];
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0)
      fail(where, fmt::format("\"inv_freq\"[{}] must be a finite number, 0 or more", i));
    frequencies[i] = value.get<double>();
  }
  return frequencies;
}

// ---- layers

void expect_extent(const NamedShape& tensor, size_t axis, int64_t expected, const char* why) {
  if (tensor.shape[axis] != expected)
    fail(tensor.where,
         fmt::format("has shape {}, its axis {} must be {}, {}", h5::describe(tensor.shape), axis, expected, why));
}

NamedShape shape_of(const Tensor& tensor) { return {tensor.array.node.where(), tensor.array.shape}; }

// `o_proj` is [Hq, out_dim, hidden].
void read_projection_shape(const h5::Node& node, LayerInfo& layer) {
  const Tensor projection = open_tensor(node, "o_proj", layer.source_dtype);
  layer.output_width = checked_extent(shape_of(projection), 2, "numbers per hidden state", kWidestOutput);
  expect_shape(projection.array, {layer.q_heads, layer.out_dim(), layer.output_width});
}

void read_optional_datasets(const h5::Node& node, LayerInfo& layer) {
  layer.has_q_pos = h5::has_child(node, "q_pos");
  layer.has_sinks = h5::has_child(node, "sinks");
  layer.has_out = h5::has_child(node, "out");
  if (layer.has_q_pos) expect_integers(h5::open_array(node, "q_pos"), layer.query_rows);
  if (!layer.has_q_pos && layer.query_rows != layer.tokens)
    fail(node.where() + "/q", fmt::format("has {} rows for {} tokens: strided queries need the dataset q_pos beside it "
                                          "(axes are [heads, tokens, dim])",
                                          layer.query_rows, layer.tokens));
  if (layer.has_sinks) expect_floats(h5::open_array(node, "sinks"), {layer.q_heads});
  if (layer.has_out)
    expect_shape(open_tensor(node, "out", layer.source_dtype).array,
                 {layer.q_heads, layer.query_rows, layer.out_dim()});
  if (h5::has_child(node, "o_proj")) read_projection_shape(node, layer);
  read_gradient_shapes(node, layer);
  layer.has_in_norm = h5::has_child(node, "resid_in_norm");
  if (layer.has_in_norm) expect_floats(h5::open_array(node, "resid_in_norm"), {layer.tokens});
  read_repeat_rows(node, layer);
  read_lookahead_rows(node, layer);
}

// Factors outside these bounds overflow or underflow in single precision; no model has them.
constexpr double kSmallestFactor = 1e-12, kLargestFactor = 1e12;

double checked_factor(const h5::Node& node, const char* name, double value) {
  if (value < kSmallestFactor || value > kLargestFactor)
    fail(node.where(),
         fmt::format("attribute {} is {}, it must be from {} to {}", name, value, kSmallestFactor, kLargestFactor));
  return value;
}

void read_layer_attributes(const h5::Node& node, LayerInfo& layer) {
  const auto scaling = h5::number(node, "scaling");
  if (!scaling)
    fail(node.where(),
         fmt::format("the attribute scaling is missing. Write the factor of q.k, often 1/sqrt(head_dim) = {:.6g}",
                     1 / std::sqrt(layer.head_dim)));
  layer.scaling = checked_factor(node, "scaling", *scaling);
  layer.sliding_window = static_cast<int32_t>(h5::integer(node, "sliding_window", 0, INT32_MAX).value_or(0));
  layer.attention_chunk = static_cast<int32_t>(h5::integer(node, "attention_chunk", 0, INT32_MAX).value_or(0));
  if (layer.sliding_window > 0 && layer.attention_chunk > 0)
    fail(node.where(),
         fmt::format("attributes sliding_window {} and attention_chunk {} exclude each other: write 0 for "
                     "the one that the layer does not have",
                     layer.sliding_window, layer.attention_chunk));
  layer.softcap = h5::number(node, "softcap").value_or(0);
  if (layer.softcap != 0) checked_factor(node, "softcap", layer.softcap);  // 0: none
  layer.q_prescaled = h5::flag(node, "q_prescaled").value_or(false);
}

// rope_json of the layer, else of the root, else of the root of the file that an external link leads to.
std::optional<std::pair<std::string, std::string>> find_rope_json(const h5::Node& root, const h5::Node& node) {
  const h5::Node home{h5::Handle(H5Gopen2(node.id.get(), "/", H5P_DEFAULT), H5Gclose), node.file, "/"};
  for (const h5::Node* at : {&node, &root, &home})
    if (auto json_text = h5::text(*at, "rope_json"))
      return std::pair(*json_text, at->where() + ": attribute rope_json");
  return std::nullopt;
}

void set_rope(const std::optional<Rope>& rope, LayerInfo& layer) {
  layer.rope_unknown = rope && rope->changes;
  layer.rope_recorded = !layer.rope_unknown;
  if (!layer.rope_unknown) layer.rope = rope;
}

void read_rope(const h5::Node& root, const h5::Node& node, LayerInfo& layer) {
  const std::string kind = h5::text(node, "rope").value_or("post");
  const auto rotary_dims = h5::integer(node, "rotary_dims", 0, layer.head_dim);
  if (kind != "post" && kind != "none" && kind != "unknown")
    fail(node.where(),
         fmt::format("attribute rope is \"{}\", it must be post (q and k are rotated), none or unknown", kind));
  layer.rope_unknown = kind == "unknown";
  if (layer.rope_unknown) return;
  if (kind == "none" || rotary_dims == 0) {
    layer.rope_recorded = true;
    return;
  }
  const auto found = find_rope_json(root, node);
  if (!found || found->first.empty() || found->first == "null") return;
  set_rope(parse_rope(found->first, found->second, layer.head_dim, rotary_dims), layer);
}

void read_kv_layer(const h5::Node& node, LayerInfo& layer) {
  const auto owner = h5::integer(node, "kv_layer", 0, INT32_MAX);
  if (!owner) return;
  if (*owner >= layer.layer)
    fail(node.where(), fmt::format("attribute kv_layer is {}, it must be a layer before this one", *owner));
  layer.kv_layer = static_cast<int32_t>(*owner);
}

void read_layer_shapes(const h5::Node& node, LayerInfo& layer) {
  const std::string source_dtype = h5::text(node, "source_dtype").value_or("");
  if (h5::has_child(node, "latent")) return read_latent_shapes(node, source_dtype, layer);
  for (const char* name : {"q", "k", "v"})
    if (!h5::has_child(node, name))
      fail(node.where() + "/" + name, "is missing. A layer needs q, k and v, or of latent attention q and latent");
  const Tensor q = open_tensor(node, "q", source_dtype), k = open_tensor(node, "k", source_dtype),
               v = open_tensor(node, "v", source_dtype);
  layer.dtype = k.dtype;
  layer.source_dtype = source_dtype.empty() ? name_of(k.dtype) : source_dtype;
  set_shapes(shape_of(q), shape_of(k), shape_of(v), layer);
}

LayerInfo read_layer(const h5::Node& root, const h5::Node& node, int32_t number) {
  LayerInfo layer;
  layer.layer = number;
  if (!node.is_group()) fail(node.where(), "is not a group");
  read_layer_shapes(node, layer);
  read_layer_attributes(node, layer);
  read_optional_datasets(node, layer);
  read_rope(root, node, layer);
  read_kv_layer(node, layer);
  return layer;
}

// ---- prompts

int32_t layer_number(const h5::Node& layers, const std::string& name) {
  const bool digits =
      name.size() == 3 && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) fail(layers.where() + "/" + name, "is no layer: their names are three digits, e.g. 007");
  return std::stoi(name);
}

void check_same_length(const h5::Node& node, const PromptInfo& prompt, const LayerInfo& layer) {
  const LayerInfo& first = prompt.layers.front();
  if (layer.tokens != first.tokens)
    fail(node.where() + "/k",
         fmt::format("has {} tokens, but layer {} of the same prompt has {}", layer.tokens, first.layer, first.tokens));
}

void read_layers(const h5::Node& root, const h5::Node& node, const TraceScope& scope, PromptInfo& prompt) {
  if (!h5::has_child(node, "layers")) fail(node.where() + "/layers", "is missing");
  const h5::Node layers = h5::open_child(node, "layers");
  for (const std::string& name : h5::members(layers)) {
    const int32_t number = layer_number(layers, name);
    prompt.layer_numbers.push_back(number);
    if (!scope.holds(prompt.id) || !scope.holds(number)) continue;
    const h5::Node layer = h5::open_child(layers, name);
    prompt.layers.push_back(read_layer(root, layer, number));
    check_same_length(layer, prompt, prompt.layers.back());
  }
  if (prompt.layer_numbers.empty()) fail(layers.where(), "holds no layers");
}

// ---- the file

void check_schema(const h5::Node& root) {
  if (!h5::has_attribute(root, "kvreplay_schema"))
    fail(root.file.string(),
         "is an HDF5 file but no trace: the root has no attribute kvreplay_schema = 1 (docs/formats.md)");
  const double schema = *h5::number(root, "kvreplay_schema");
  if (schema != 1)
    fail(root.file.string(), fmt::format("attribute kvreplay_schema is {}, this version reads schema 1", schema));
  const auto complete = h5::number(root, "complete");
  if (complete && *complete != 1)
    fail(root.file.string(),
         fmt::format("is an unfinished dump (attribute complete is {}). Finish it with kvreplay record --resume",
                     *complete));
}

std::string printable_text(const h5::Node& node, const char* name, const std::string& missing) {
  const std::string value = h5::text(node, name).value_or(missing);
  if (!is_printable_utf8(value)) fail(node.where(), fmt::format("attribute {} holds control characters", name));
  return value;
}

std::string first_text(const h5::Node& root, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (h5::has_attribute(root, name)) return printable_text(root, name, "");
  return "";
}

// Prompts that were replayed before the last one was recorded could not know their place among the sorted ids.
uint32_t rank_of(const h5::Node& prompt, size_t place) {
  return static_cast<uint32_t>(h5::integer(prompt, "rank", 0, INT32_MAX).value_or(static_cast<int64_t>(place)));
}

int32_t count_layers(const h5::Node& root, const TraceInfo& info) {
  int32_t last = 0;
  for (const PromptInfo& prompt : info.prompts) last = std::max(last, prompt.layer_numbers.back());
  const int64_t layers = h5::integer(root, "n_layers", 1, kMostLayers).value_or(last + 1);
  if (layers <= last)
    fail(root.where(), fmt::format("attribute n_layers is {}, but the file holds layer {}", layers, last));
  return static_cast<int32_t>(layers);
}

}  // namespace

void set_shapes(const NamedShape& q, const NamedShape& k, const NamedShape& v, LayerInfo& layer) {
  for (const NamedShape* tensor : {&q, &k, &v}) expect_axes(*tensor);
  layer.kv_heads = checked_extent(k, 0, "heads", kMostHeads);
  layer.tokens = checked_extent(k, 1, "tokens", kMostTokens);
  layer.head_dim = checked_extent(k, 2, "numbers per key", kWidestHead);
  layer.v_head_dim = checked_extent(v, 2, "numbers per value", kWidestHead);
  layer.q_heads = checked_extent(q, 0, "heads", kMostHeads);
  layer.query_rows = checked_extent(q, 1, "query rows", kMostTokens);
  expect_extent(v, 0, layer.kv_heads, "the heads of k");
  expect_extent(v, 1, layer.tokens, "the tokens of k");
  expect_extent(q, 2, layer.head_dim, "the head_dim of k");
  if (layer.q_heads % layer.kv_heads != 0)
    fail(q.where, fmt::format("has {} heads, which is not a multiple of k's {}", layer.q_heads, layer.kv_heads));
  if (layer.query_rows > layer.tokens)
    fail(q.where, fmt::format("has {} query rows, more than k's {} tokens. Axes are [heads, tokens, dim]",
                              layer.query_rows, layer.tokens));
}

std::optional<Rope> parse_rope(const std::string& text, const std::string& where, int32_t head_dim,
                               std::optional<int64_t> rotary_dims) {
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) fail(where, "is not a JSON object");
  Rope rope;
  rope.type = json_text(object, "type", "default", where);
  if (rope.type == "none") return std::nullopt;
  rope.theta = json_number(object, "theta", 0, where);
  if (rope.theta < 0) fail(where, fmt::format("\"theta\" is {}, it must be above 0", rope.theta));
  rope.attention_factor = json_number(object, "attention_factor", 1, where);
  if (rope.attention_factor <= 0)
    fail(where, fmt::format("\"attention_factor\" is {}, it must be above 0", rope.attention_factor));
  rope.layout = parse_layout(json_text(object, "layout", "half_split", where), where);
  rope.rotary_dims = parse_rotary_dims(object, head_dim, rotary_dims, where);
  rope.inv_freq = parse_frequencies(object, rope, where);
  const auto ranges = object.find("ranges");
  rope.changes = ranges != object.end() && ranges->is_array() && ranges->size() > 1;
  return rope;
}

// Spans of the prompt's tokens that hold what its question asks for.
std::vector<TokenSpan> read_needles(const h5::Node& node, int64_t n_prompt) {
  std::vector<TokenSpan> spans;
  for (const std::vector<int64_t>& span : h5::integers(node, "needle_tokens", 2, 0, n_prompt)) {
    if (span[0] >= span[1])
      fail(node.where(),
           fmt::format("attribute needle_tokens has a span from {} to {}: the end must be larger", span[0], span[1]));
    spans.push_back({static_cast<int32_t>(span[0]), static_cast<int32_t>(span[1])});
  }
  return spans;
}

PromptInfo read_prompt(const h5::Node& root, const h5::Node& node, const std::string& id, const TraceScope& scope) {
  PromptInfo prompt;
  prompt.id = id;
  if (!node.is_group()) fail(node.where(), "is not a group");
  read_layers(root, node, scope, prompt);
  if (prompt.layers.empty()) return prompt;  // out of scope
  prompt.tokens = prompt.layers.front().tokens;
  prompt.n_prompt = h5::integer(node, "n_prompt", 1, prompt.tokens).value_or(prompt.tokens);
  read_segments(node, prompt);
  prompt.n_generated = h5::integer(node, "n_generated", 0, kMostTokens).value_or(prompt.tokens - prompt.n_prompt);
  prompt.question_from = h5::integer(node, "question_from", 1, prompt.tokens - 1);
  prompt.needles = read_needles(node, prompt.n_prompt);
  prompt.source = h5::text(node, "source").value_or("");
  prompt.has_tokens = has_integers(node, "tokens", prompt.tokens);
  prompt.has_classes = has_integers(node, "token_class", prompt.tokens);
  std::vector<int64_t> positions;
  if (has_integers(node, "position_ids", prompt.tokens))
    positions = h5::read_integers(h5::open_array(node, "position_ids"));
  prompt.odd_positions = odd_positions(positions);
  prompt.repeat = read_repeat(node, prompt);
  prompt.lookahead = read_lookahead(node, prompt);
  read_branches(node, positions, prompt);
  return prompt;
}

TraceInfo read_info(const h5::Node& root, const std::filesystem::path& path, const TraceScope& scope) {
  check_schema(root);
  TraceInfo info;
  info.path = path;
  info.trace_id = printable_text(root, "trace_id", "");
  info.model = printable_text(root, "model", "unknown");
  info.revision = printable_text(root, "revision", "");
  info.created_utc = printable_text(root, "created_utc", "");
  info.dumper = first_text(root, {"dumper", "dumper_version"});
  if (!h5::has_child(root, "prompts")) fail(root.file.string() + ": /prompts", "is missing");
  const h5::Node prompts = h5::open_child(root, "prompts");
  for (const std::string& id : h5::members(prompts)) {
    const h5::Node prompt = h5::open_child(prompts, id);
    info.prompts.push_back(read_prompt(root, prompt, id, scope));
    info.prompts.back().rank = rank_of(prompt, info.prompts.size() - 1);
  }
  if (info.prompts.empty()) fail(prompts.where(), "holds no prompts");
  info.n_layers = count_layers(root, info);
  return info;
}

}  // namespace kvreplay
