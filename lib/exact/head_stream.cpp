#include "exact/head_stream.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <type_traits>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/matrices.hpp"
#include "exact/row_scores.hpp"

namespace kvreplay {

template <class Real>
RotationTable<Real>::RotationTable(const Rope& rope, int32_t offsets)
    : pairs(int32_t(rope.inv_freq.size())), interleaved(rope.layout == Rope::Layout::interleaved) {
  cosines.reserve(size_t(offsets) * size_t(pairs));
  sines.reserve(size_t(offsets) * size_t(pairs));
  for (int32_t offset = 0; offset < offsets; ++offset)
    for (const double frequency : rope.inv_freq) {
      cosines.push_back(Real(std::cos(offset * frequency)));
      sines.push_back(Real(std::sin(offset * frequency)));
    }
}

namespace {

constexpr int32_t kMostOffsets = 1 << 22;  // 4 million tokens: beyond that a position id is a mistake

// read(into) writes floats; read_into() widens them if Real is double.
template <class Real, class F>
void read_into(std::span<Real> to, F read) {
  if constexpr (std::is_same_v<Real, float>) {
    read(to);
  } else {
    std::vector<float> buffer(to.size());
    read(std::span<float>(buffer));
    std::copy(buffer.begin(), buffer.end(), to.begin());
  }
}

template <class Real>
void load_rows(const Tensors& trace, const HeadRequest& request, int32_t first, HeadStream<Real>& stream) {
  const size_t blocks = size_t(stream.shape.blocks), keys = size_t(stream.tokens) * size_t(stream.shape.dim),
               values = size_t(stream.tokens) * size_t(stream.shape.v_dim);
  stream.keys.resize(blocks * keys);
  stream.values.resize(blocks * values);
  for (size_t b = 0; b < blocks; ++b) {
    const int32_t head = first + int32_t(b);
    read_into(std::span(stream.keys).subspan(b * keys, keys), [&](std::span<float> into) {
      trace.read_keys(request.place.prompt, request.place.layer, head, stream.tokens, into);
    });
    read_into(std::span(stream.values).subspan(b * values, values), [&](std::span<float> into) {
      trace.read_values(request.place.prompt, request.place.layer, head, stream.tokens, into);
    });
  }
}

template <class Real>
void load_layer_keys(const Tensors& trace, const HeadRequest& request, const LayerInfo& layer,
                     HeadStream<Real>& stream) {
  const size_t of_head = size_t(stream.prompt) * size_t(stream.shape.dim);
  stream.kv_heads = layer.kv_heads, stream.kv_head = request.place.kv_head;
  stream.layer_keys.resize(size_t(layer.kv_heads) * of_head);
  for (int32_t head = 0; head < layer.kv_heads; ++head)
    read_into(std::span(stream.layer_keys).subspan(size_t(head) * of_head, of_head), [&](std::span<float> into) {
      trace.read_keys(request.place.prompt, request.place.layer, head, stream.prompt, into);
    });
}

// The range of query heads of a request.
struct QueryHeads {
  int32_t first, count;
  static QueryHeads of(const LayerInfo& layer, const HeadRequest& request) {
    if (request.place.kv_head == Place::kWholeLayer) return {0, layer.q_heads};
    return {request.place.kv_head * layer.group(), layer.group()};
  }
};

template <class Real>
void load_queries(const Tensors& trace, const HeadRequest& request, HeadStream<Real>& stream) {
  const std::vector<int32_t> tokens = trace.query_positions(request.place.prompt, request.place.layer);
  stream.query_row.assign(size_t(stream.tokens), -1);
  for (const int32_t token : tokens)
    if (token < stream.tokens) stream.query_row[size_t(token)] = stream.all_query_rows++;
  if (!request.all_queries && stream.all_query_rows > kQueryRows) return;
  stream.query_rows = stream.all_query_rows;
  read_query_rows(trace, request, 0, stream.query_rows, stream.queries);
}

template <class Real>
void load_sensitivity(const Tensors& trace, const HeadRequest& request, const LayerInfo& layer,
                      HeadStream<Real>& stream) {
  const std::vector<int32_t> rows = trace.gradient_rows(request.place.prompt, request.place.layer);
  const std::string missing = projection_obstacle(trace, request.place, rows, request.extent);
  const QueryHeads heads = QueryHeads::of(layer, request);
  if (missing.empty()) stream.sensitivity = read_sensitivity(trace, request.place, rows, heads.first, heads.count);
  else if (request.gradient == HeadRequest::Gradient::required)
    throw TraceError(fmt::format("{}: prompt {}, layer {}: {} (needed to save projections)", trace.info().path.string(),
                                 request.place.prompt, request.place.layer, missing));
}

// The recorded rows saw `context` tokens of the prompt. Throws unless the replay's prompt has the same length.
void expect_context(const Tensors& trace, const HeadRequest& request, int64_t context, const std::string& what,
                    const char* flag) {
  if (context == request.extent.prompt_tokens) return;
  throw TraceError(
      fmt::format("{}: prompt {}: {}, and the prompt that is replayed has {}: give prefill {}, or record it with "
                  "`kvreplay record {}` at that length",
                  trace.info().path.string(), request.place.prompt, what, request.extent.prompt_tokens, context, flag));
}

// The chunks must cover exactly the replayed prompt.
template <class Real>
void load_repeat(const Tensors& trace, const HeadRequest& request, const LayerInfo& layer, HeadStream<Real>& stream) {
  const std::string& prompt = request.place.prompt;
  stream.repeat = trace.prompt(prompt).repeat;
  const int64_t context = stream.repeat.context_tokens;
  expect_context(trace, request, context, fmt::format("its first {} tokens are repeated", context), "--repeat");
  const QueryHeads heads = QueryHeads::of(layer, request);
  const size_t of_head = size_t(stream.repeat.row_count()) * size_t(layer.head_dim),
               blocks = size_t(stream.shape.blocks);
  const int32_t first_block = heads.first / layer.group();
  stream.repeat_queries.resize(size_t(heads.count) * of_head);
  stream.repeat_keys.resize(blocks * of_head);
  for (int32_t h = 0; h < heads.count; ++h)
    read_into(std::span(stream.repeat_queries).subspan(size_t(h) * of_head, of_head),
              [&](std::span<float> into) { trace.read_repeat_queries(prompt, layer.layer, heads.first + h, into); });
  for (size_t b = 0; b < blocks; ++b)
    read_into(std::span(stream.repeat_keys).subspan(b * of_head, of_head), [&](std::span<float> into) {
      trace.read_repeat_keys(prompt, layer.layer, first_block + int32_t(b), into);
    });
  if (request.repeat_input_norms) stream.repeat_input_norms = trace.repeat_input_norms(prompt, layer.layer);
}

template <class Real>
void load_lookahead(const Tensors& trace, const HeadRequest& request, const LayerInfo& layer,
                    HeadStream<Real>& stream) {
  const std::string& prompt = request.place.prompt;
  const QueryHeads heads = QueryHeads::of(layer, request);
  const int64_t context = trace.prompt(prompt).lookahead.context_tokens;
  if (layer.lookahead_rows > 0)
    expect_context(trace, request, context, fmt::format("rows are generated behind its first {} tokens", context),
                   "--lookahead");
  const size_t of_head = size_t(layer.lookahead_rows) * size_t(layer.head_dim);
  stream.lookahead_rows = layer.lookahead_rows;
  stream.lookahead_queries.resize(size_t(heads.count) * of_head);
  for (int32_t h = 0; h < heads.count; ++h)
    read_into(std::span(stream.lookahead_queries).subspan(size_t(h) * of_head, of_head),
              [&](std::span<float> into) { trace.read_lookahead_queries(prompt, layer.layer, heads.first + h, into); });
}

template <class Real>
void load_up_values(const Tensors& trace, const HeadRequest& request, const LayerInfo& layer,
                    HeadStream<Real>& stream) {
  const QueryHeads heads = QueryHeads::of(layer, request);
  const size_t of_head = size_t(layer.v_head_dim) * size_t(layer.out_dim());
  stream.up_values.resize(size_t(heads.count) * of_head);
  for (int32_t h = 0; h < heads.count; ++h)
    read_into(std::span(stream.up_values).subspan(size_t(h) * of_head, of_head), [&](std::span<float> into) {
      trace.read_up_values(request.place.prompt, request.place.layer, heads.first + h, into);
    });
}

template <class Real>
void load_output_norms(const Tensors& trace, const HeadRequest& request, const LayerInfo& layer,
                       HeadStream<Real>& stream) {
  const QueryHeads heads = QueryHeads::of(layer, request);
  std::vector<float> weights(size_t(layer.out_dim()) * size_t(layer.output_width));
  std::vector<float> up(layer.is_latent() ? size_t(layer.v_head_dim) * size_t(layer.out_dim()) : 0);
  for (int32_t h = 0; h < heads.count; ++h) {
    trace.read_output_weights(request.place.prompt, request.place.layer, heads.first + h, weights);
    if (layer.is_latent()) {  // values are latents, which the head projects first
      trace.read_up_values(request.place.prompt, request.place.layer, heads.first + h, up);
      add_output_norms(stream, product_of(up, weights, size_t(layer.out_dim())));
    } else {
      add_output_norms(stream, weights);
    }
  }
}

// Builds a table for offsets from 0 to the largest distance between two positions.
template <class Real>
void prepare_rotation(const Tensors& trace, const HeadRequest& request, const LayerInfo& layer,
                      HeadStream<Real>& stream) {
  if (!layer.rope_recorded)
    throw TraceError(trace.info().path.string() + ": prompt " + request.place.prompt + ", layer " +
                     std::to_string(layer.layer) +
                     ": no rope_json, so positions cannot be re-assigned; use `positions: original`");
  if (!layer.rope) return;  // a layer without rotary embedding ignores the setting
  // An offset is the distance that a token's position shrinks by. It is never negative only if positions ascend.
  const auto repeated = std::adjacent_find(stream.positions.begin(), stream.positions.end(), std::greater_equal<>());
  if (repeated != stream.positions.end())
    throw TraceError(trace.info().path.string() + ": /prompts/" + request.place.prompt +
                     "/position_ids do not ascend after token " + std::to_string(repeated - stream.positions.begin()) +
                     ", so positions cannot be re-assigned; use `positions: original`");
  const int32_t span = stream.positions.back() - stream.positions.front();
  if (span >= kMostOffsets)
    throw TraceError(trace.info().path.string() + ": /prompts/" + request.place.prompt + "/position_ids span " +
                     std::to_string(span) + " positions, too many to re-assign; use `positions: original`");
  stream.rotation = std::make_unique<RotationTable<Real>>(*layer.rope, span + 1);
}

std::vector<uint8_t> load_classes(const Tensors& trace, const HeadRequest& request) {
  std::vector<uint8_t> classes = trace.token_classes(request.place.prompt);
  if (classes.empty())
    throw TraceError(trace.info().path.string() + ": /prompts/" + request.place.prompt +
                     "/token_class is missing, and a listed method looks at the text of tokens; record it with "
                     "kvreplay record --with-text");
  classes.resize(size_t(request.extent.tokens));
  return classes;
}

template <class Real>
void load_turns(const Tensors& trace, const HeadRequest& request, HeadStream<Real>& stream) {
  stream.turns = turns_of(trace.prompt(request.place.prompt).segments, stream.prompt, stream.tokens);
  stream.branch = request.extent.branch;
  for (Turns::Segment& segment : stream.turns.segments)
    if (stream.branch >= 0) segment.number = stream.branch;
}

template <class Real>
double largest_norm(const std::vector<Real>& values, int32_t width) {
  double most = 0;
  for (size_t i = 0; i < values.size(); i += size_t(width)) {
    double s = 0;
    for (size_t c = i; c < i + size_t(width); ++c) s += double(values[c]) * double(values[c]);
    most = std::max(most, s);
  }
  return std::sqrt(most);
}

}  // namespace

void HeadRequest::add_needs(const PromptNeeds& needs, const Calibration& calibration) {
  classes = classes || needs.token_classes;
  output_norms = output_norms || needs.output_norms;
  layer_keys = layer_keys || needs.layer_keys;
  repeat = repeat || needs.repeat;
  lookahead = std::max(lookahead, needs.lookahead);
  repeat_input_norms = repeat_input_norms || needs.input_norms;
  all_queries = all_queries || needs.queries || (needs.known.any() && !calibration.is_offline());
  if (!needs.known.any() || !calibration.is_offline()) return;
  StatisticsNeeds& of_text = known[{calibration, needs.known.moments_after}];
  of_text = of_text | needs.known;
}

template <class Real>
void set_rope(HeadStream<Real>& stream, const std::optional<Rope>& rope) {
  if (!rope) return;
  stream.inv_freq = rope->inv_freq;
  stream.interleaved = rope->layout == Rope::Layout::interleaved;
  stream.attention_factor = rope->attention_factor;
}

template <class Real>
HeadStream<Real> load_head(const Tensors& trace, const HeadRequest& request) {
  const LayerInfo& layer = trace.layer(request.place.prompt, request.place.layer);
  const bool whole = request.place.kv_head == Place::kWholeLayer;
  const int32_t first = whole ? 0 : request.place.kv_head, blocks = whole ? layer.kv_heads : 1;
  HeadStream<Real> stream;
  stream.shape = {layer.head_dim, layer.v_head_dim, layer.group() * blocks, blocks, layer.is_latent()};
  stream.tokens = request.extent.tokens;
  stream.prompt = request.extent.prompt_tokens;
  const PromptInfo& prompt = trace.prompt(request.place.prompt);
  stream.waiting = int32_t(std::max<int64_t>(0, stream.tokens - (prompt.tokens - prompt.waiting)));
  stream.rule = {Real(layer.scaling), Real(layer.softcap)};
  stream.window = layer.window();
  stream.stored_bytes = bytes_of(layer.dtype);
  stream.needles = prompt.needles;
  load_rows(trace, request, first, stream);
  load_queries(trace, request, stream);
  const DeviceTensors there = trace.on_device(request.place.prompt, request.place.layer);
  stream.on_device = {there.q.from_head(first * layer.group()), there.k.from_head(first), there.v.from_head(first)};
  if (layer.is_latent()) load_up_values(trace, request, layer, stream);
  const std::vector<float> sinks = trace.sink_logits(request.place.prompt, request.place.layer);
  if (!sinks.empty()) {
    const auto of_first = sinks.begin() + first * layer.group();
    stream.sink_logits.assign(of_first, of_first + stream.shape.heads);
  }
  if (request.extent.turns) load_turns(trace, request, stream);
  set_rope(stream, layer.rope);
  stream.positions = trace.position_ids(request.place.prompt);
  stream.positions.resize(size_t(stream.tokens));
  if (request.classes) stream.classes = load_classes(trace, request);
  if (request.repeat) load_repeat(trace, request, layer, stream);
  if (request.lookahead > 0) load_lookahead(trace, request, layer, stream);
  if (request.layer_keys && layer.kv_heads > 1 && !whole) load_layer_keys(trace, request, layer, stream);
  if (request.output_norms) load_output_norms(trace, request, layer, stream);
  if (request.rotation) prepare_rotation(trace, request, layer, stream);
  for (const auto& [by, needs] : request.known)
    stream.known.emplace(by, known_queries(trace, request.place, by.first, needs));
  if (request.gradient != HeadRequest::Gradient::none) load_sensitivity(trace, request, layer, stream);
  stream.max_value_norm = largest_norm(stream.values, stream.shape.v_dim);
  if (layer.is_latent())  // the Frobenius norm of a head's projection bounds what it does to a norm
    stream.max_value_norm *= largest_norm(stream.up_values, stream.shape.v_dim * stream.out_dim());
  return stream;
}

template <class Real>
void read_query_rows(const Tensors& trace, const HeadRequest& request, int32_t first, int32_t count,
                     std::vector<Real>& queries) {
  const LayerInfo& layer = trace.layer(request.place.prompt, request.place.layer);
  const QueryHeads heads = QueryHeads::of(layer, request);
  const size_t one_head = size_t(count) * size_t(layer.head_dim);
  queries.resize(one_head * size_t(heads.count));
  for (int32_t h = 0; h < heads.count; ++h)
    read_into(std::span(queries).subspan(size_t(h) * one_head, one_head), [&](std::span<float> into) {
      trace.read_queries(request.place.prompt, request.place.layer, heads.first + h, first, count, into);
    });
}

template <class Real>
void HeadStream<Real>::hold_queries(int32_t first, int32_t last) const {
  if (!fetch_queries) return;
  const auto begin = query_row.begin() + first, end = query_row.begin() + last + 1;
  const auto held = [](int32_t row) { return row >= 0; };
  const auto from = std::find_if(begin, end, held);
  if (from == end) return;
  const int32_t low = *from, high = *std::max_element(from, end);
  if (low >= first_query_row && high < first_query_row + query_rows) return;
  const int32_t count = std::min(std::max(kQueryRows, high + 1 - low), all_query_rows - low);
  fetch_queries(low, count, queries);
  first_query_row = low;
  query_rows = count;
}

template struct HeadStream<float>;
template struct HeadStream<double>;
template void read_query_rows(const Tensors&, const HeadRequest&, int32_t, int32_t, std::vector<float>&);
template void read_query_rows(const Tensors&, const HeadRequest&, int32_t, int32_t, std::vector<double>&);
template struct RotationTable<float>;
template struct RotationTable<double>;
template void set_rope(HeadStream<float>&, const std::optional<Rope>&);
template void set_rope(HeadStream<double>&, const std::optional<Rope>&);
template HeadStream<float> load_head(const Tensors&, const HeadRequest&);
template HeadStream<double> load_head(const Tensors&, const HeadRequest&);

namespace {

// The first scored row, and the distance to the next.
struct ScoredRows {
  size_t first, step;
  ScoredRows(size_t rows, const QuerySelection& selection) {
    using Kind = QuerySelection::Kind;
    const size_t count = size_t(selection.count);
    step = selection.kind == Kind::stride ? count : 1;
    first = selection.kind == Kind::last && rows > count ? rows - count : 0;
  }
};

}  // namespace

int64_t count_scored(int64_t rows, const QuerySelection& selection) {
  const ScoredRows scored(size_t(rows), selection);
  return (rows - int64_t(scored.first) + int64_t(scored.step) - 1) / int64_t(scored.step);
}

template <class Real>
std::vector<uint8_t> scored_tokens(const HeadStream<Real>& stream, const QuerySelection& selection) {
  std::vector<size_t> rows;
  for (size_t t = size_t(stream.prompt); t < size_t(stream.tokens); ++t)
    if (stream.query_row[t] >= 0 && stream.turns.is_output(int32_t(t))) rows.push_back(t);
  const ScoredRows all(rows.size(), selection);
  std::vector<uint8_t> scored(size_t(stream.tokens), 0);
  for (size_t i = all.first; i < rows.size(); i += all.step) scored[rows[i]] = 1;
  return scored;
}

template std::vector<uint8_t> scored_tokens(const HeadStream<float>&, const QuerySelection&);
template std::vector<uint8_t> scored_tokens(const HeadStream<double>&, const QuerySelection&);

}  // namespace kvreplay
