#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "calibration/calibrate.hpp"
#include "core/attend.hpp"
#include "core/layer_window.hpp"
#include "core/method_context.hpp"
#include "core/place.hpp"
#include "core/token_span.hpp"
#include "exact/sensitivity.hpp"
#include "trace/tensors.hpp"
#include "trace/turn_steps.hpp"

namespace kvreplay {

// Cosines and sines of every offset, [offsets, pairs], computed in double precision.
template <class Real>
struct RotationTable {
  std::vector<Real> cosines, sines;
  int32_t pairs = 0;
  bool interleaved = false;
  RotationTable(const Rope& rope, int32_t offsets);
};

// One kv head of one layer of one prompt, or all kv heads of the layer (shape.blocks), in memory. Policies have no
// access to it.
template <class Real>
struct HeadStream {
  HeadShape shape{};  // heads: the query heads of the group, or of the layer
  int32_t tokens = 0, prompt = 0;
  int32_t waiting = 0;             // the last tokens, whose rows have not arrived yet; they are zero
  std::vector<Real> keys, values;  // [blocks, tokens, dim], [blocks, tokens, v_dim]
  // For a long trace only some query rows are in memory, see hold_queries().
  mutable std::vector<Real> queries;    // [heads, query_rows, dim]
  std::vector<int32_t> query_row;       // [tokens] row in the trace's queries, or -1 if there is none
  mutable int32_t query_rows = 0;       // rows in memory
  mutable int32_t first_query_row = 0;  // the first of them
  int32_t all_query_rows = 0;           // rows of tokens 0..tokens-1 in the trace
  // Reads rows first..first+count-1 of every head into queries; empty if all rows are in memory.
  std::function<void(int32_t first, int32_t count, std::vector<Real>& queries)> fetch_queries;
  // Where a device holds the numbers above: the stream's query heads [heads, query rows of the trace, dim], its keys
  // and values.
  DeviceTensors on_device;
  LogitRule<Real> rule;
  LayerWindow window;
  Turns turns;                                    // empty: tokens behind the prompt come one by one
  int32_t branch = -1;                            // the branch that follows the prompt; -1: the trace's own rows do
  std::vector<Real> sink_logits;                  // [heads], or empty
  std::vector<int32_t> positions;                 // [tokens] position ids
  std::unique_ptr<RotationTable<Real>> rotation;  // only if a method reassigns positions
  std::vector<double> inv_freq;                   // [pairs] rotary embedding; empty: none
  bool interleaved = false;
  double attention_factor = 1;
  std::vector<uint8_t> classes;  // [tokens] TokenClass, only if a method needs it
  // The pass that repeats the prompt, [heads, rows, dim] and [blocks, rows, dim]; empty unless requested.
  RepeatInfo repeat;
  std::vector<Real> repeat_queries, repeat_keys;
  std::vector<float> repeat_input_norms;  // [rows], likewise
  // Queries that the model generated after the cut prompt, [heads, rows, dim]; empty unless requested.
  std::vector<Real> lookahead_queries;
  int64_t lookahead_rows = 0;
  // Keys of the prompt of all kv heads of the layer, [kv_heads, prompt, dim]; empty unless requested, or for one head.
  std::vector<Real> layer_keys;
  int32_t kv_heads = 1, kv_head = 0;  // their number, and which of them is this one
  // ||v W||_1 and ||v W||_2 of the prompt's values after the output projection of each query head, [heads, prompt];
  // empty unless requested.
  std::vector<double> output_norms_l1, output_norms_l2;
  // Latent attention: what makes the output of each query head from its sum over latents, [heads, v_dim, out_dim].
  std::vector<Real> up_values;
  std::map<StatisticsKey, KnownQueries> known;  // statistics of other text, if a method uses them
  Sensitivity sensitivity;                      // only if projections are requested and a gradient is recorded
  std::vector<TokenSpan> needles;               // PromptInfo::needles
  int32_t stored_bytes = 4;                     // bytes of one number in the trace
  double max_value_norm = 0;                    // bound on the norm of an output: over tokens 0..tokens-1

  int32_t out_dim() const {  // numbers of an output
    return up_values.empty() ? shape.v_dim : int32_t(up_values.size() / size_t(shape.heads) / size_t(shape.v_dim));
  }
  int32_t arrived() const { return tokens - waiting; }
  const Real* block_keys(int32_t block) const { return keys.data() + int64_t(block) * tokens * shape.dim; }
  const Real* block_values(int32_t block) const { return values.data() + int64_t(block) * tokens * shape.v_dim; }
  const Real* query(int32_t head, int32_t token) const {
    const int64_t row = query_row[size_t(token)] - first_query_row;
    return queries.data() + (int64_t(head) * query_rows + row) * shape.dim;
  }
  double sink_logit(int32_t head) const {  // -infinity if the head has none
    return sink_logits.empty() ? -double(INFINITY) : double(sink_logits[size_t(head)]);
  }
  // Loads the queries of tokens first..last, possibly in place of others. Call it before reading them. Not thread-safe.
  void hold_queries(int32_t first, int32_t last) const;

  // The first token that row t may attend to.
  int32_t first_key(int32_t t) const { return window.first(t); }
  Rotation<Real> rotate() const {
    if (rotation == nullptr) return {};
    return {rotation->cosines.data(), rotation->sines.data(), positions.data(), rotation->pairs, rotation->interleaved};
  }
};

// Copies a layer's rotary embedding, if it has one.
template <class Real>
void set_rope(HeadStream<Real>& stream, const std::optional<Rope>& rope);

// A request to load one kv head, or a whole layer.
struct HeadRequest {
  Place place;
  Extent extent;
  bool rotation = false;  // a method reassigns positions
  bool classes = false;   // a method uses token classes
  bool repeat = false, repeat_input_norms = false;
  int32_t lookahead = 0;      // number of lookahead rows that a method uses
  bool layer_keys = false;    // a method uses the keys of all kv heads of the layer
  bool output_norms = false;  // a method uses values after the output projection
  // The gradient on which errors are projected: none, recorded (used if the trace has it), required (else TraceError).
  enum class Gradient { none, recorded, required } gradient = Gradient::none;
  bool all_queries = true;                              // false: fetch those of a long trace on demand
  std::map<StatisticsKey, StatisticsNeeds> known = {};  // statistics of other text than the prompt

  // Adds what a method needs besides keys, values and queries. calibration: the text whose query statistics it uses.
  void add_needs(const PromptNeeds& needs, const Calibration& calibration);
};
// Number of query rows, of all heads, that are read at once.
constexpr int32_t kQueryRows = 2048;
template <class Real>
void read_query_rows(const Tensors& trace, const HeadRequest& request, int32_t first, int32_t count,
                     std::vector<Real>& queries);
// Throws TraceError if the trace cannot be read, or lacks the rotary metadata that `rotation` needs.
template <class Real>
HeadStream<Real> load_head(const Tensors& trace, const HeadRequest& request);

// From query-key products to exponents.

// Turns n products into logits except for a factor, which it returns: the exponential applies the factor at no cost.
template <class Real>
Real leave_scale(const LogitRule<Real>& rule, Real* products, int32_t n) {
  const Real scale = rule.factor * rule.scale;
  if (!(rule.softcap > 0) && scale > 0) return scale;
  for (int32_t i = 0; i < n; ++i) products[i] = rule(products[i]);
  return 1;
}

// Which decode rows are scored: every row, the last `count`, or every `count`-th from the first.
struct QuerySelection {
  enum class Kind { all, last, stride } kind = Kind::all;
  int64_t count = 0;
};

// How many of `rows` rows are scored.
int64_t count_scored(int64_t rows, const QuerySelection& selection);

// [tokens] 1 for a scored row. Only rows after the prompt that the trace has a query for can be scored, with turns only
// outputs.
template <class Real>
std::vector<uint8_t> scored_tokens(const HeadStream<Real>& stream, const QuerySelection& selection);

}  // namespace kvreplay
