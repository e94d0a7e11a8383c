#pragma once
#include <cassert>
#include <cmath>
#include <cstdint>
#include <span>

#include "core/calibration.hpp"
#include "core/platform.hpp"

// All that a policy may see: the present token, and the prompt while it is compressed. Neither can be copied or kept,
// and neither leads to a pointer beyond its end.

namespace kvreplay {

// The score that a row adds to a token in place of its attention probability: to first order, the error of the output
// if the token's value, its key, or both are pruned. OBCache, Gu et al. 2025, sections 3 and 4. The closed forms are
// derived anew from its premise: pruning a key sends its logit to 0. With p the probability, l the logit and o the
// row's output:
//   value: p^2 ||v||^2    key: p^2 l^2 ||v - o||^2    joint: p^2 ||v + l (v - o)||^2
enum class TokenScore { attention, obc_value, obc_key, obc_joint };
constexpr const char* kTokenScores[] = {"attention", "obc_value", "obc_key", "obc_joint"};

// Score of an attended token; for `attention` it is p.
template <class V, class O>
double token_score(TokenScore which, double p, double logit, std::span<V> value, std::span<O> output) {
  if (which == TokenScore::attention) return p;
  const double of_value = which == TokenScore::obc_value ? 1 : which == TokenScore::obc_key ? logit : 1 + logit;
  const double of_output = which == TokenScore::obc_value ? 0 : logit;
  const V* v = value.data();
  const O* o = output.data();
  const int32_t n = int32_t(value.size());
  double square = 0;
  KVR_SIMD_SUM(square) for (int32_t c = 0; c < n; ++c) {
    const double lost = of_value * double(v[c]) - of_output * double(o[c]);
    square += lost * lost;
  }
  return p * p * square;
}

// The heads that share one cache (conventions C1, C9): one kv head and its query heads, one query head alone (gqa.level
// query), or all kv heads of a layer (gqa.level layer), which hold the same tokens.
struct HeadShape {
  int32_t dim;         // length of a key and of a query
  int32_t v_dim;       // length of a value
  int32_t heads;       // query heads that decide together
  int32_t blocks = 1;  // kv heads; query head h reads block h / (heads / blocks)
  // Latent attention: a value is the last v_dim numbers of its key, and is not stored again.
  bool value_in_key = false;
  int32_t stored_v_dim() const { return value_in_key ? 0 : v_dim; }
  // The part of one kv head.
  HeadShape one_block() const {
    HeadShape one = *this;
    one.heads /= blocks, one.blocks = 1;
    return one;
  }
  int32_t block_of(int32_t head) const { return blocks == 1 ? 0 : head / (heads / blocks); }
};

// Text class of a token, as traces store it; plain if the trace holds no text.
enum class TokenClass : uint8_t { plain = 0, punctuation = 1, special = 2 };

// The present: one token, for the duration of one call.
template <class Real>
class Token {
 public:
  Token(std::span<const Real> k, std::span<const Real> v, int32_t at, TokenClass c = TokenClass::plain)
      : key(k), value(v), index(at), text_class(c) {}
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;

  const std::span<const Real> key, value;
  const int32_t index;  // 0-based in the trace
  const TokenClass text_class;
};

// How the scores of the query heads are combined (gqa.agg).
enum class Aggregate : int32_t { sum, mean, max, first };

template <class F>
double aggregate(Aggregate how, int32_t heads, F of_head) {
  double a = of_head(0);
  if (how == Aggregate::first) return a;
  for (int32_t h = 1; h < heads; ++h) {
    const double x = of_head(h);
    a = how == Aggregate::max ? (x > a ? x : a) : a + x;
  }
  return how == Aggregate::mean ? a / heads : a;
}
inline double aggregate(Aggregate how, const double* of_head, int64_t stride, int32_t heads) {
  return aggregate(how, heads, [=](int32_t h) { return of_head[h * stride]; });
}

// Rotary embedding of the layer (convention C15). Without one, `pairs` is 0.
struct RopeView {
  const double* inv_freq = nullptr;  // [pairs]
  int32_t pairs = 0;
  bool interleaved = false;
  double attention_factor = 1;
};

// A second pass over the prompt's text (`kvreplay record --repeat`): rows after the whole prompt that repeat it chunk
// by chunk.
template <class Real>
struct RepeatView {
  const Real *queries = nullptr, *keys = nullptr;  // [heads, rows, dim], [blocks, rows, dim]
  const float* input_norms = nullptr;              // [rows] norms of the inputs of the query projection, or null
  int64_t rows = 0;                                // rows of all chunks
  int32_t chunks = 0;
  const int32_t *first_row = nullptr, *first_token = nullptr;  // [chunks + 1]: first row and first token of each chunk
};

// Tokens 0..size-1, and the data about them that the policy declared it needs (PromptNeeds). Valid during read_prompt()
// only.
template <class Real>
class Prompt {
 public:
  struct View {
    const Real *keys, *values;                // [blocks, *, dim], [blocks, *, v_dim]
    int64_t key_block = 0, value_block = 0;   // elements from one block to the next
    const double* column_sums = nullptr;      // [heads, size]
    const double* column_max_sums = nullptr;  // [size]: sums over rows of the maximum over the heads (Aggregate::max)
    const double* future_sums = nullptr;      // [heads, tokens]
    int32_t tokens = 0;                       // n, for oracles
    const Real* queries = nullptr;            // [heads, *, dim]
    int64_t query_head = 0;                   // elements from one query head to the next
    const uint8_t* classes = nullptr;         // [size]
    const int32_t* positions = nullptr;       // [size]
    RopeView rope;
    int32_t size;
    HeadShape shape;
    Aggregate aggregate;
    double scale, softcap = 0;
    const Real* sink_logits = nullptr;  // [heads] or null
    RepeatView<Real> repeat;
    const Real* lookahead = nullptr;  // [heads, lookahead_rows, dim]
    int64_t lookahead_rows = 0;
    const Real* layer_keys = nullptr;  // [kv_heads, size, dim]
    int32_t kv_heads = 1, kv_head = 0;
    const double* output_norms = nullptr;  // [heads, size]
    const double* output_sums = nullptr;   // [heads, size]
    QueryStatistics known;
  };
  explicit Prompt(const View& view) : view_(view) {}
  Prompt(const Prompt&) = delete;
  Prompt& operator=(const Prompt&) = delete;

  int32_t size() const { return view_.size; }
  HeadShape shape() const { return view_.shape; }
  double scale() const { return view_.scale; }
  double softcap() const { return view_.softcap; }  // 0: none
  // Logit for an inner product of a query and a key: scale, then soft cap.
  double logit(double product) const {
    const double l = view_.scale * product;
    return view_.softcap > 0 ? view_.softcap * std::tanh(l / view_.softcap) : l;
  }
  // A logit whose exp() is added to the head's denominator; -infinity: the head has none.
  double sink_logit(int32_t head) const {
    return view_.sink_logits == nullptr ? -double(INFINITY) : double(view_.sink_logits[head]);
  }
  RopeView rope() const { return view_.rope; }
  int32_t position(int32_t i) const { return view_.positions[i]; }
  std::span<const int32_t> positions() const { return {view_.positions, size_t(view_.size)}; }
  Aggregate how() const { return view_.aggregate; }
  std::span<const Real> key(int32_t i) const { return at(view_.keys, i, view_.shape.dim); }
  std::span<const Real> value(int32_t i) const { return at(view_.values, i, view_.shape.v_dim); }
  Token<Real> token(int32_t i) const {
    return {key(i), value(i), i, view_.classes == nullptr ? TokenClass::plain : token_class(i)};
  }
  // Sum of the scores (attention, or column_sums_of) that prompt rows column_sums_from..size-1 give to token i, from
  // one query head or aggregated.
  double column_sum(int32_t i, int32_t head) const {
    assert(view_.column_sums != nullptr && i >= 0 && i < view_.size);
    return view_.column_sums[int64_t(head) * view_.size + i];
  }
  double column_sum(int32_t i) const {
    assert(view_.column_sums != nullptr && i >= 0 && i < view_.size);
    if (view_.column_max_sums != nullptr) return view_.column_max_sums[i];
    return kvreplay::aggregate(view_.aggregate, view_.column_sums + i, view_.size, view_.shape.heads);
  }
  // Column sums over all scored decode rows, for any token of the trace. Only for oracles, whose method file must state
  // that they see the future.
  int32_t future_tokens() const { return view_.tokens; }
  double future_sum(int32_t i) const {
    assert(view_.future_sums != nullptr && i >= 0 && i < view_.tokens);
    return kvreplay::aggregate(view_.aggregate, view_.future_sums + i, view_.tokens, view_.shape.heads);
  }
  // Query of a prompt row.
  std::span<const Real> query(int32_t head, int32_t row) const {
    assert(view_.queries != nullptr && head < view_.shape.heads);
    return at(view_.queries + head * view_.query_head, row, view_.shape.dim);
  }
  // Query of a row after the prompt. Only for analyses, whose method file must state that they see the future.
  std::span<const Real> future_query(int32_t head, int32_t row) const {
    assert(view_.queries != nullptr && head < view_.shape.heads && row >= view_.size && row < view_.tokens);
    return {view_.queries + head * view_.query_head + int64_t(row) * view_.shape.dim, size_t(view_.shape.dim)};
  }
  const RepeatView<Real>& repeat() const { return view_.repeat; }
  std::span<const Real> repeat_query(int32_t head, int64_t row) const {
    const RepeatView<Real>& r = view_.repeat;
    assert(r.queries != nullptr && head < view_.shape.heads && row < r.rows);
    return {r.queries + (head * r.rows + row) * view_.shape.dim, size_t(view_.shape.dim)};
  }
  std::span<const Real> repeat_key(int64_t row) const {
    const RepeatView<Real>& r = view_.repeat;
    assert(r.keys != nullptr && row < r.rows);
    return {r.keys + row * view_.shape.dim, size_t(view_.shape.dim)};
  }
  // Query of a row that the model generated after the prompt, from a cut cache (`kvreplay record --lookahead`).
  std::span<const Real> lookahead_query(int32_t head, int64_t row) const {
    assert(view_.lookahead != nullptr && head < view_.shape.heads && row < view_.lookahead_rows);
    return {view_.lookahead + (head * view_.lookahead_rows + row) * view_.shape.dim, size_t(view_.shape.dim)};
  }
  // Keys of all kv heads of the layer, the prompt's own one among them.
  int32_t kv_heads() const { return view_.kv_heads; }
  int32_t kv_head() const { return view_.kv_head; }
  std::span<const Real> layer_key(int32_t kv_head, int32_t i) const {
    assert(view_.layer_keys != nullptr && kv_head < view_.kv_heads);
    return at(view_.layer_keys + int64_t(kv_head) * view_.size * view_.shape.dim, i, view_.shape.dim);
  }
  // ||v W||_2 of a token's value after a query head's output projection.
  double output_norm(int32_t head, int32_t i) const {
    assert(view_.output_norms != nullptr && i >= 0 && i < view_.size);
    return view_.output_norms[int64_t(head) * view_.size + i];
  }
  // ||v W||_1, likewise.
  double output_sum(int32_t head, int32_t i) const {
    assert(view_.output_sums != nullptr && i >= 0 && i < view_.size);
    return view_.output_sums[int64_t(head) * view_.size + i];
  }
  // Statistics of queries that have not been seen yet; the parameter `calibration` selects the prompts they come from.
  // For one query head: the mean before rotation (an attention factor is left in), the mean modulus of each pair of
  // channels, the main direction of the rotated queries, and the channels in descending order of their part in the
  // products with keys.
  std::span<const double> mean_query(int32_t head) const { return known(view_.known.means, head, dim()); }
  std::span<const double> query_sizes(int32_t head) const { return known(view_.known.sizes, head, view_.rope.pairs); }
  std::span<const double> query_direction(int32_t head) const { return known(view_.known.directions, head, dim()); }
  std::span<const int32_t> ranked_channels(int32_t head) const { return known(view_.known.channels, head, dim()); }
  // Mean and covariance [dim, dim] before rotation, without the first rows of each prompt; an attention factor is left
  // in. Known of other text only.
  bool knows_moments() const { return view_.known.covariances != nullptr; }
  std::span<const double> full_mean_query(int32_t head) const { return known(view_.known.full_means, head, dim()); }
  std::span<const double> query_covariance(int32_t head) const {
    return known(view_.known.covariances, head, dim() * dim());
  }
  TokenClass token_class(int32_t i) const {
    assert(view_.classes != nullptr);
    return TokenClass(view_.classes[i]);
  }
  // One query head alone; the prompt must have one kv head.
  Prompt head(int32_t h) const {
    View v = heads_from(h);
    v.shape.heads = 1;
    return Prompt(v);
  }
  // One kv head of a layer, with its group of query heads.
  Prompt block(int32_t b) const {
    const int32_t group = view_.shape.heads / view_.shape.blocks;
    View v = heads_from(b * group);
    v.keys += b * v.key_block;
    v.values += b * v.value_block;
    if (v.repeat.keys != nullptr) v.repeat.keys += int64_t(b) * v.repeat.rows * v.shape.dim;
    v.shape = view_.shape.one_block();
    return Prompt(v);
  }

 private:
  std::span<const Real> at(const Real* base, int32_t i, int32_t width) const {
    assert(i >= 0 && i < view_.size);
    return {base + int64_t(i) * width, size_t(width)};
  }
  int32_t dim() const { return view_.shape.dim; }
  template <class Number>
  std::span<const Number> known(const Number* all, int32_t head, int32_t width) const {
    assert((all != nullptr || width == 0) && head >= 0 && head < view_.shape.heads);
    return {all + int64_t(head) * width, size_t(width)};
  }
  // Everything from query head `first` on.
  View heads_from(int32_t first) const {
    View v = view_;
    if (v.column_sums != nullptr) v.column_sums += int64_t(first) * v.size;
    if (v.future_sums != nullptr) v.future_sums += int64_t(first) * v.tokens;
    if (v.queries != nullptr) v.queries += first * v.query_head;
    if (v.sink_logits != nullptr) v.sink_logits += first;
    if (v.repeat.queries != nullptr) v.repeat.queries += first * v.repeat.rows * v.shape.dim;
    if (v.lookahead != nullptr) v.lookahead += first * v.lookahead_rows * v.shape.dim;
    if (v.output_norms != nullptr) v.output_norms += int64_t(first) * v.size;
    if (v.output_sums != nullptr) v.output_sums += int64_t(first) * v.size;
    v.known = v.known.from(first, v.shape.dim, v.rope.pairs);
    v.column_max_sums = nullptr;
    return v;
  }
  View view_;
};

// The data of the prompt that a policy reads besides keys and values. Sums are computed once and shared by every cache
// that asks for the same sums.
struct PromptNeeds {
  static constexpr int32_t kNoRows = -1;
  int32_t column_sums_from = kNoRows;  // first row of Prompt::column_sum
  TokenScore column_sums_of = TokenScore::attention;
  // Number of rows after the prompt that are summed too. The policy is then an oracle and is not measured on these
  // rows.
  int32_t rows_ahead = 0;
  int32_t rows_from = kNoRows;  // first row passed to observe_prompt()
  bool queries = false;         // Prompt::query
  bool future_queries = false;  // also Prompt::future_query: the policy is an oracle
  bool whole = false;           // the prompt must arrive in one call: every step depends on what is learnt from it
  bool rotary = false;          // Prompt::rope: the trace must record how its vectors were rotated
  bool future_sums = false;     // Prompt::future_sum: the policy is an oracle
  bool token_classes = false;   // Prompt::token_class: the trace must hold the text
  bool repeat = false;          // Prompt::repeat: the trace must hold a pass that repeats the prompt
  bool input_norms = false;     // also the norms of the inputs of its query projection
  bool layer_keys = false;      // Prompt::layer_key, for a cache of one kv head
  bool output_norms = false;    // Prompt::output_norm, output_sum: the trace must hold the output projection
  int32_t lookahead = 0;        // rows of Prompt::lookahead_query: the trace must hold this many generated rows
  StatisticsNeeds known = {};   // Prompt::mean_query and its neighbours
  bool reads_queries() const { return queries || column_sums_from >= 0 || rows_from >= 0; }
};

}  // namespace kvreplay
