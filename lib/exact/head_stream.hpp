#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "calibration/calibrate.hpp"
#include "core/attend.hpp"
#include "core/method_context.hpp"
#include "core/place.hpp"
#include "exact/sensitivity.hpp"
#include "trace/tensors.hpp"

namespace kvreplay {

// Cosines and sines of every offset, [offsets, pairs], computed in double.
template <class Real>
struct RotationTable {
  std::vector<Real> cosines, sines;
  int32_t pairs = 0;
  bool interleaved = false;
  RotationTable(const Rope& rope, int32_t offsets);
};

// One kv head of one layer of one prompt, or all kv heads of the layer (shape.blocks), as the engine holds
// it. No policy can name it.
template <class Real>
struct HeadStream {
  HeadShape shape{};  // heads = the whole group, or the layer's
  int32_t tokens = 0, prompt = 0;
  std::vector<Real> keys, values;  // [blocks, tokens, dim], [blocks, tokens, v_dim]
  // Of long traces only some rows are held at a time, see hold_queries().
  mutable std::vector<Real> queries;    // [heads, query_rows, dim]
  std::vector<int32_t> query_row;       // [tokens] row in the trace's queries, or -1 where it has none
  mutable int32_t query_rows = 0;       // rows that are held
  mutable int32_t first_query_row = 0;  // the first of them
  int32_t all_query_rows = 0;           // of tokens 0..tokens-1; only used with fetch_queries
  // Reads rows first..first+count-1 of every head into queries; empty: all are held.
  std::function<void(int32_t first, int32_t count, std::vector<Real>& queries)> fetch_queries;
  LogitRule<Real> rule;
  int32_t window = 0;                             // sliding window of the layer; 0: none
  std::vector<Real> sink_logits;                  // [heads], or empty
  std::vector<int32_t> positions;                 // [tokens] position ids
  std::unique_ptr<RotationTable<Real>> rotation;  // only where a method re-assigns positions
  std::vector<double> inv_freq;                   // [pairs] rotary embedding; empty: none
  bool interleaved = false;
  double attention_factor = 1;
  std::vector<uint8_t> classes;  // [tokens] TokenClass, only where a method asks
  // The pass that repeats the prompt, [heads, rows, dim] and [blocks, rows, dim]; empty unless asked for.
  RepeatInfo repeat;
  std::vector<Real> repeat_queries, repeat_keys;
  std::vector<float> repeat_input_norms;  // [rows], likewise
  // What the model asked behind the cut prompt, [heads, rows, dim]; empty unless asked for.
  std::vector<Real> lookahead_queries;
  int64_t lookahead_rows = 0;
  // ||v W||_1 and ||v W||_2 of the prompt's values behind the output projection of each query head, [heads, prompt];
  // empty unless asked for.
  std::vector<double> output_norms_l1, output_norms_l2;
  std::map<Calibration, KnownQueries> known;  // of other text than the prompt, where a method knows it
  Sensitivity sensitivity;                    // only where projections are asked for and recorded
  int32_t stored_bytes = 4;                   // of one number in the trace
  double max_value_norm = 0;                  // of tokens 0..tokens-1

  const Real* block_keys(int32_t block) const { return keys.data() + int64_t(block) * tokens * shape.dim; }
  const Real* block_values(int32_t block) const { return values.data() + int64_t(block) * tokens * shape.v_dim; }
  const Real* query(int32_t head, int32_t token) const {
    const int64_t row = query_row[size_t(token)] - first_query_row;
    return queries.data() + (int64_t(head) * query_rows + row) * shape.dim;
  }
  double sink_logit(int32_t head) const {  // -infinity: the head has none
    return sink_logits.empty() ? -double(INFINITY) : double(sink_logits[size_t(head)]);
  }
  // Before queries of tokens first..last are looked at: sees to it that they are held, perhaps in the place
  // of others. Not for several threads.
  void hold_queries(int32_t first, int32_t last) const;

  // First token that row t may attend to.
  int32_t first_key(int32_t t) const { return window > 0 && t >= window ? t - window + 1 : 0; }
  Rotation<Real> rotate() const {
    if (rotation == nullptr) return {};
    return {rotation->cosines.data(), rotation->sines.data(), positions.data(), rotation->pairs, rotation->interleaved};
  }
};

// Takes over a layer's rotary embedding, if there is one.
template <class Real>
void set_rope(HeadStream<Real>& stream, const std::optional<Rope>& rope);

// What to load: one kv head, or all of a layer.
struct HeadRequest {
  Place place;
  Extent extent;
  bool rotation = false;  // a method re-assigns positions
  bool classes = false;   // a method looks at the text
  bool repeat = false, repeat_input_norms = false;
  int32_t lookahead = 0;      // rows behind the cut prompt that a method looks at
  bool output_norms = false;  // a method looks at values behind the output projection
  // The gradient that errors are projected on: nobody asks, where the trace has it, or TraceError without it.
  enum class Gradient { none, recorded, required } gradient = Gradient::none;
  bool all_queries = true;                            // false: those of a long trace are fetched when they are needed
  std::map<Calibration, StatisticsNeeds> known = {};  // of other text than the prompt

  // What a method reads of the prompt besides keys, values and queries, and by whose queries it is calibrated.
  void ask_for(const PromptNeeds& needs, const Calibration& calibration);
};
// Query rows of all heads that are read at a time.
constexpr int32_t kQueryRows = 2048;
template <class Real>
void read_query_rows(const Tensors& trace, const HeadRequest& request, int32_t first, int32_t count,
                     std::vector<Real>& queries);
// Throws TraceError when the trace cannot be read, or lacks the rotary metadata that `rotation` needs.
template <class Real>
HeadStream<Real> load_head(const Tensors& trace, const HeadRequest& request);

}  // namespace kvreplay
