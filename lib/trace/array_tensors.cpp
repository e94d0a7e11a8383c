#include "trace/array_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/errors.hpp"
#include "trace/suspicious_facts.hpp"
#include "trace/tensors.hpp"

namespace kvreplay {
namespace {

struct WhereRead {
  const TraceInfo& trace;
  const std::string& prompt;
  int32_t layer;
  const char *name, *row;
  std::string text() const {
    return fmt::format("{}: prompt {}, layer {}: {}", trace.path.string(), prompt, layer, name);
  }
};

void read(const WhereRead& where, const ArrayView& array, int64_t head, int64_t first, int64_t rows,
          std::span<float> into) {
  read_rows(array, head, first, rows, into.data());
  const std::string problem = unusable_number(into, array.extents[2], head, first, where.row);
  if (!problem.empty()) throw TraceError(where.text() + " holds " + problem);
}

std::vector<int32_t> ascending(int64_t count) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

std::string extents_text(const ArrayView& a) {
  return fmt::format("[{}, {}, {}]", a.extents[0], a.extents[1], a.extents[2]);
}

// Describes the first problem with the shapes of a layer's tensors; "" if there is none.
std::string shape_problem(const LayerArrays& l) {
  const auto& [heads, rows, dim] = l.q.extents;
  const auto& [kv_heads, tokens, key_dim] = l.k.extents;
  for (const auto& [name, a] : {std::pair{"q", &l.q}, {"k", &l.k}, {"v", &l.v}})
    if (*std::min_element(a->extents, a->extents + 3) < 1)
      return fmt::format("{} is {}: every extent must be at least 1", name, extents_text(*a));
  if (l.v.extents[0] != kv_heads || l.v.extents[1] != tokens)
    return fmt::format("k is {} and v is {}: heads and tokens must agree", extents_text(l.k), extents_text(l.v));
  if (dim != key_dim)
    return fmt::format("q is {} and k is {}: the last extents must agree", extents_text(l.q), extents_text(l.k));
  if (heads % kv_heads != 0)
    return fmt::format(
        "{} query heads are no multiple of {} kv heads; q is [query heads, tokens, dim], k is [kv heads, tokens, dim]",
        heads, kv_heads);
  const int64_t expected = l.q_pos.empty() ? tokens : int64_t(l.q_pos.size());
  if (rows != expected)
    return fmt::format("q has {} rows, but {} {}: give q_pos, the token of each query row, where queries are strided",
                       rows, expected, l.q_pos.empty() ? "tokens have keys" : "positions are given");
  for (size_t i = 0; i < l.q_pos.size(); ++i)
    if (l.q_pos[i] < 0 || l.q_pos[i] >= tokens || (i > 0 && l.q_pos[i] <= l.q_pos[i - 1]))
      return fmt::format("q_pos holds {} at {}: it must ascend, from 0 to {}", l.q_pos[i], i, tokens - 1);
  if (!l.sinks.empty() && int64_t(l.sinks.size()) != heads)
    return fmt::format("{} sink logits, but {} query heads", l.sinks.size(), heads);
  if (std::max({heads, kv_heads}) > 65535 || std::max({dim, l.v.extents[2]}) > 65536 || tokens > INT32_MAX / 2)
    return fmt::format("q is {} and k is {}: larger than any model's", extents_text(l.q), extents_text(l.k));
  return "";
}

}  // namespace

void take_shapes(TraceArrays& arrays) {
  for (PromptInfo& prompt : arrays.info.prompts) {
    const PromptArrays& of = arrays.prompts.at(prompt.id);
    for (LayerInfo& info : prompt.layers) {
      const LayerArrays& l = of.layers.at(info.layer);
      std::string problem = shape_problem(l);
      if (problem.empty() && l.k.extents[1] != prompt.tokens)
        problem = fmt::format("k holds {} tokens, but other layers of the prompt {}", l.k.extents[1], prompt.tokens);
      if (!problem.empty())
        throw TraceError(
            fmt::format("{}: prompt {}, layer {}: {}", arrays.info.path.string(), prompt.id, info.layer, problem));
      info.q_heads = int32_t(l.q.extents[0]), info.kv_heads = int32_t(l.k.extents[0]);
      info.head_dim = int32_t(l.q.extents[2]), info.v_head_dim = int32_t(l.v.extents[2]);
      info.tokens = l.k.extents[1], info.query_rows = l.q.extents[1], info.dtype = l.k.type;
      info.source_dtype = name_of(l.k.type);
      info.has_q_pos = !l.q_pos.empty(), info.has_sinks = !l.sinks.empty();
    }
    for (const auto& [name, count] :
         {std::pair{"position_ids", of.position_ids.size()}, {"classes", of.classes.size()}})
      if (count != 0 && int64_t(count) != prompt.tokens)
        throw TraceError(fmt::format("{}: prompt {}: {} {}, but {} tokens", arrays.info.path.string(), prompt.id, count,
                                     name, prompt.tokens));
    prompt.has_classes = !of.classes.empty();
    prompt.odd_positions = odd_positions(std::vector<int64_t>(of.position_ids.begin(), of.position_ids.end()));
  }
}

const PromptArrays& ArrayTensors::of(const std::string& prompt_id) const {
  return arrays_.prompts.at(prompt(prompt_id).id);
}
const LayerArrays& ArrayTensors::of(const std::string& prompt_id, int32_t number) const {
  return of(prompt_id).layers.at(layer(prompt_id, number).layer);
}

void ArrayTensors::read_keys(const std::string& prompt, int32_t layer, int32_t kv_head, int64_t count,
                             std::span<float> into) const {
  read({info(), prompt, layer, "k", "token"}, of(prompt, layer).k, kv_head, 0, count, into);
}
void ArrayTensors::read_values(const std::string& prompt, int32_t layer, int32_t kv_head, int64_t count,
                               std::span<float> into) const {
  read({info(), prompt, layer, "v", "token"}, of(prompt, layer).v, kv_head, 0, count, into);
}
void ArrayTensors::read_queries(const std::string& prompt, int32_t layer, int32_t q_head, int64_t first, int64_t rows,
                                std::span<float> into) const {
  read({info(), prompt, layer, "q", "query"}, of(prompt, layer).q, q_head, first, rows, into);
}
DeviceTensors ArrayTensors::on_device(const std::string& prompt, int32_t layer) const {
  const LayerArrays& arrays = of(prompt, layer);
  return {arrays.q.on_device, arrays.k.on_device, arrays.v.on_device};
}
std::vector<uint8_t> ArrayTensors::token_classes(const std::string& prompt) const { return of(prompt).classes; }
std::vector<int32_t> ArrayTensors::position_ids(const std::string& prompt_id) const {
  const std::vector<int32_t>& given = of(prompt_id).position_ids;
  return given.empty() ? ascending(prompt(prompt_id).tokens) : given;
}
std::vector<int32_t> ArrayTensors::query_positions(const std::string& prompt, int32_t number) const {
  const std::vector<int32_t>& given = of(prompt, number).q_pos;
  return given.empty() ? ascending(layer(prompt, number).query_rows) : given;
}
std::vector<float> ArrayTensors::sink_logits(const std::string& prompt, int32_t layer) const {
  return of(prompt, layer).sinks;
}

}  // namespace kvreplay
