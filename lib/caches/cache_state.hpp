#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "caches/cut_reading.hpp"
#include "caches/merging.hpp"
#include "calibration/known_queries.hpp"
#include "catalog/bound_method.hpp"
#include "catalog/cell.hpp"
#include "core/cache.hpp"
#include "core/replay_error.hpp"
#include "core/step.hpp"
#include "exact/head_stream.hpp"
#include "formats/coded_tokens.hpp"
#include "formats/formatter.hpp"

namespace kvreplay {

// Sums over rows of the prompt and, for oracles, over future rows, and statistics of queries. Each covers all heads of
// the stream; null if not requested.
struct PromptSums {
  const double *columns = nullptr, *future = nullptr;  // [heads, prompt], [heads, tokens]
  const double* received = nullptr;       // like columns, over the rows whose attention the merge rule uses
  const KnownQueries* known = nullptr;    // over all heads
  const double* later_columns = nullptr;  // like columns, for the method that decides after the prompt
  PromptSums later() const { return {.columns = later_columns, .known = known}; }
};

// The part of the sums that belongs to some query heads, as a policy sees it.
template <class Real>
typename Prompt<Real>::View sums_view(const HeadStream<Real>& s, const PromptSums& sums, int32_t first_head,
                                      int32_t heads, Aggregate how) {
  typename Prompt<Real>::View view{};
  const bool by_row = how == Aggregate::max && heads == s.shape.heads;
  if (sums.columns != nullptr) view.column_sums = sums.columns + int64_t(first_head) * s.prompt;
  if (sums.columns != nullptr && by_row) view.column_max_sums = sums.columns + int64_t(heads) * s.prompt;
  if (sums.known != nullptr) view.known = sums.known->from(first_head);
  if (sums.future != nullptr) view.future_sums = sums.future + int64_t(first_head) * s.tokens;
  return view;
}

// Everything that the policy of a cache may read of the prompt, except sums. held: the cache's memory, whose keys and
// values it reads.
template <class Real>
typename Prompt<Real>::View view_of(const HeadStream<Real>& s, int32_t first_head, Aggregate how,
                                    const CacheStorage<Real>& held, bool queries,
                                    typename Prompt<Real>::View view = {}) {
  view.keys = held.keys, view.values = held.values;
  view.key_block = held.key_block, view.value_block = held.value_block;
  view.tokens = s.tokens, view.size = s.prompt, view.shape = held.shape;
  view.aggregate = how, view.scale = double(s.rule.scale), view.softcap = double(s.rule.softcap);
  if (!s.repeat_queries.empty())
    view.repeat = {s.repeat_queries.data() + int64_t(first_head) * s.repeat.row_count() * s.shape.dim,
                   s.repeat_keys.data() + int64_t(s.shape.block_of(first_head)) * s.repeat.row_count() * s.shape.dim,
                   s.repeat_input_norms.empty() ? nullptr : s.repeat_input_norms.data(),
                   s.repeat.row_count(),
                   int32_t(s.repeat.chunks()),
                   s.repeat.rows.data(),
                   s.repeat.ctx.data()};
  if (!s.lookahead_queries.empty()) {
    view.lookahead = s.lookahead_queries.data() + int64_t(first_head) * s.lookahead_rows * s.shape.dim;
    view.lookahead_rows = s.lookahead_rows;
  }
  view.layer_keys = held.keys;  // all there are where a layer has one kv head
  if (!s.layer_keys.empty())
    view.layer_keys = s.layer_keys.data(), view.kv_heads = s.kv_heads, view.kv_head = s.kv_head;
  if (!s.sink_logits.empty()) view.sink_logits = s.sink_logits.data() + first_head;
  if (queries) {
    view.queries = s.query(first_head, 0);
    view.query_head = int64_t(s.query_rows) * s.shape.dim;
  }
  if (!s.classes.empty()) view.classes = s.classes.data();
  if (!s.output_norms_l2.empty()) view.output_norms = s.output_norms_l2.data() + int64_t(first_head) * s.prompt;
  if (!s.output_norms_l1.empty()) view.output_sums = s.output_norms_l1.data() + int64_t(first_head) * s.prompt;
  view.positions = s.positions.data();
  view.rope = {s.inv_freq.data(), int32_t(s.inv_freq.size()), s.interleaved, s.attention_factor};
  return view;
}

template <class Real>
Prompt<Real> prompt_view(const HeadStream<Real>& s, const PromptSums& sums, int32_t first_head, Aggregate how,
                         const CacheStorage<Real>& held, bool queries) {
  return Prompt<Real>(
      view_of(s, first_head, how, held, queries, sums_view(s, sums, first_head, held.shape.heads, how)));
}

// The memory of one cache, allocated before the first token. With `audit` the cache works on a private copy of the
// trace's rows. Everything in it that no policy may read is NaN: later tokens until they arrive, and evicted tokens
// from their eviction on.
template <class Real>
class CacheMemory {
 public:
  // rows: number of tokens held at a time. coded: tokens as a row format decodes them, or null.
  void allocate(const HeadStream<Real>& stream, const HeadShape& shape, const Layout& layout, int32_t rows, bool audit,
                const CodedTokens<Real>* coded = nullptr, int32_t first_block = 0, int32_t score_sets = 1) {
    stream_ = &stream, first_block_ = first_block;
    const size_t n = size_t(stream.tokens);
    const int32_t capacity = rows + layout.own_rows + int32_t(layout.extra_rows);
    token_.resize(size_t(capacity));
    mark_.resize(size_t(capacity));
    copies_.assign(n, 0);
    evicted_.resize(n);
    if (layout.scores) score_.resize(size_t(capacity) * size_t(score_sets));
    if (layout.weights) num_.resize(size_t(capacity)), den_.resize(size_t(capacity));
    if (layout.coded) coding_.resize(size_t(capacity));
    if (layout.own_rows > 0) {
      slot_.resize(size_t(capacity));
      free_.resize(size_t(layout.own_rows));
      own_keys_.resize(size_t(layout.own_rows) * size_t(shape.blocks * shape.dim));
      own_values_.resize(size_t(layout.own_rows) * size_t(shape.blocks * shape.v_dim));
    }
    state_.assign(size_t(layout.state_doubles), 0.0);
    if (audit) {
      keys_.assign(stream.keys.size(), nan());
      values_.assign(stream.values.size(), nan());
    }
    const int64_t first_key = int64_t(first_block) * stream.tokens * shape.dim;
    const int64_t first_value = int64_t(first_block) * stream.tokens * shape.v_dim;
    storage_ = {(audit ? keys_.data() : stream.keys.data()) + first_key,
                (audit ? values_.data() : stream.values.data()) + first_value,
                coded != nullptr ? coded->keys() + first_key : nullptr,
                coded != nullptr ? coded->values() + first_value : nullptr,
                token_.data(),
                pointer(score_),
                pointer(num_),
                pointer(den_),
                mark_.data(),
                pointer(slot_),
                pointer(coding_),
                pointer(free_),
                pointer(own_keys_),
                pointer(own_values_),
                copies_.data(),
                evicted_.data(),
                counts_,
                capacity,
                layout.own_rows,
                int64_t(stream.tokens) * shape.dim,
                int64_t(stream.tokens) * shape.v_dim,
                shape,
                {},
                score_sets,
                0,
                0,
                shape.blocks};
  }
  // For rows that refer to the trace: reduces the room to `rows`, for the rows held now and those to come. Forgets
  // evicted tokens.
  void shrink(size_t rows) {
    const auto cut = [rows](auto& v) {
      if (v.empty()) return;
      v.resize(rows);
      v.shrink_to_fit();
    };
    if (storage_.score_sets > 1) score_ = {};  // nothing is decided any more
    cut(token_), cut(mark_), cut(num_), cut(den_), cut(score_);
    storage_.token = token_.data(), storage_.mark = mark_.data();
    storage_.num = pointer(num_), storage_.den = pointer(den_), storage_.score = pointer(score_);
    storage_.capacity = int32_t(rows);
    evicted_ = {}, storage_.evicted = nullptr;
  }
  bool allocated() const { return stream_ != nullptr; }
  // Keeps the rows without scores.
  void drop_scores() { score_ = {}, storage_.score = nullptr; }
  void drop_state() { state_ = {}; }
  const CacheStorage<Real>& storage() const { return storage_; }
  std::span<double> state() { return state_; }
  bool audited() const { return !keys_.empty(); }

  // Audit: makes the tokens first..last-1 readable.
  void reveal(int32_t first, int32_t last) {
    if (!audited()) return;
    for (int32_t b = 0; b < storage_.shape.blocks; ++b) {
      const int32_t offset = (first_block_ + b) * stream_->tokens;
      copy(stream_->keys, keys_, offset + first, offset + last, storage_.shape.dim);
      copy(stream_->values, values_, offset + first, offset + last, storage_.shape.v_dim);
    }
  }
  // Audit: makes evicted tokens unreadable.
  void poison_evicted() {
    if (!audited()) return;
    for (size_t i = 0; i < copies_.size(); ++i)
      if (copies_[i] == kEvicted) {
        for (size_t b = 0; b < size_t(storage_.shape.blocks); ++b) {
          fill(keys_, (size_t(first_block_) + b) * copies_.size() + i, storage_.shape.dim);
          fill(values_, (size_t(first_block_) + b) * copies_.size() + i, storage_.shape.v_dim);
        }
      }
  }

 private:
  static Real nan() { return std::numeric_limits<Real>::quiet_NaN(); }
  template <class T>
  static T* pointer(std::vector<T>& v) {
    return v.empty() ? nullptr : v.data();
  }
  static void copy(const std::vector<Real>& from, std::vector<Real>& to, int32_t first, int32_t last, int32_t width) {
    std::copy(from.begin() + int64_t(first) * width, from.begin() + int64_t(last) * width,
              to.begin() + int64_t(first) * width);
  }
  static void fill(std::vector<Real>& rows, size_t row, int32_t width) {
    std::fill_n(rows.begin() + int64_t(row) * width, width, nan());
  }
  const HeadStream<Real>* stream_ = nullptr;
  int32_t first_block_ = 0;  // the stream's kv head with which the cache begins
  std::vector<int32_t> token_, slot_, free_, copies_, evicted_;
  std::vector<double> score_, state_;
  std::vector<Real> num_, den_, own_keys_, own_values_, keys_, values_;
  std::vector<uint8_t> mark_;
  std::vector<Coding> coding_;
  int32_t counts_[Count::kCounts] = {};
  CacheStorage<Real> storage_;
};

// One cache to be replayed. A kv head, one of its query heads, or a layer decides as a unit.
struct CacheSetup {
  BoundMethod method;  // its context has the stream's shape and window
  CommonOptions options;
  Rng rng;
  // page_heads tied, where whole pages leave: the method for each kv head of the layer; else empty.
  std::vector<BoundMethod> heads = {};
  std::vector<Rng> head_rngs = {};                // theirs, where the numbers are injected; else empty
  std::shared_ptr<const LaterMethod> later = {};  // option `then`
  GivenLists given = {};
  std::shared_ptr<const RowCoding> coding = {};  // null: rows as the trace has them
  int32_t first_head = 0;                        // first of its query heads in the stream
  bool prompt_streams = false;                   // the prompt arrives token by token because the run says so
};

// What a run wants to observe of a cache besides its rows.
struct CacheWatch {
  bool audit = false;         // use a private copy in which everything that no policy may read is NaN
  bool kept = false;          // lists of the tokens held
  bool ages = true;           // ages of evicted tokens
  bool after_prompt = false;  // the tokens held at the end of the prompt
};

// The policy, the memory and the rules of one cache. The parts of a CacheReplay share it.
template <class Real>
struct CacheState {
  CacheState(CacheSetup setup, const HeadStream<Real>& stream, const CacheWatch& watch,
             std::shared_ptr<CodedTokens<Real>> coded);

  // Hands the cache over to the method that decides after the prompt (option `then`), which reads it now.
  void hand_over(const Prompt<Real>& prompt);
  // Likewise once the last chunk of a prompt is cut: that method has followed its rows.
  void hand_over();
  // Whether it follows rows that another method cuts.
  bool has_listener() const { return later.has_value() && rules.chunked > 0; }
  // Whether two methods follow a prompt in chunks, or have followed it.
  bool two_follow() const { return has_listener() || (handed_over && rules.chunked > 0); }

  const HostHooks& host() const { return setup.method.method().host; }
  int32_t heads() const { return setup.method.context().shape.heads; }
  bool observes() const {
    return setup.method.observes(setup.options) || (rules.streaming && merging.observes()) ||
           (has_listener() && later->traits().observes);
  }
  // Whether queries are kept for later cuts once row t has been attended to: in decode, and in chunks of the prompt.
  bool keeps_queries(int32_t t) const {
    const bool again = rules.streaming ? t >= stream.prompt || rules.chunked > 0 : rules.chunked > t;
    return reading.any() && again;
  }
  bool moves_positions() const { return setup.options.positions == Positions::cache && stream.rotate().active(); }
  // The hooks of the policy, and those hooks wrapped by the options `wrapper` and `merge`.
  TableCalls<Real> calls() const { return calls_of(setup.method); }
  MergedCalls<Real> step_calls() {
    const auto listener = has_listener() ? std::optional(calls_of(*later)) : std::nullopt;
    return {
        {{calls(), &reading, &memory.storage(), &tied, listener}, setup.options.wrapper.is_none() ? nullptr : &wrapped},
        setup.options.merge.is_none() ? nullptr : &merging};
  }
  // Called as late as possible: a cache that is cut needs the whole prompt only for a moment.
  void open_memory();
  // Makes room for `rows` rows only, and forgets evicted tokens.
  void shrink(size_t rows);
  void drop_scores();
  Token<Real> token_at(int32_t t) const;
  // Checks guarantees of the policy that types cannot enforce. Throws ReplayError.
  void check() const;

  CacheSetup setup;
  std::shared_ptr<void> session;  // for a policy that requests one
  const HeadStream<Real>& stream;
  CacheWatch watch;
  StepRules rules;
  Layout layout;
  bool prompt_streams = false, reweighted = false;
  bool handed_over = false;                // another method has cut the prompt
  int64_t most_kept = Traits::kUnbounded;  // most rows after a step
  std::shared_ptr<CodedTokens<Real>> coded;
  CacheMemory<Real> memory;
  BasicCache<Real> cache;
  Formatter<Real> formatter;
  WrappedScores wrapped;  // with the option `wrapper`
  Merging merging;        // with the option `merge`
  CutReading<Real> reading;
  TiedHeads<Real> tied;                             // with page_heads tied, where whole pages leave
  std::optional<BoundMethod> later = std::nullopt;  // decides after the prompt
  std::vector<double> later_state = {};

 private:
  static TableCalls<Real> calls_of(const BoundMethod& method) {
    const Method& m = method.method();
    return {const_cast<std::byte*>(method.policy()), m.host, m.template of<Real>(), method.traits().chooses};
  }
  void follow_later();
  void open_wrapper();
  void open_later();
  Layout full_layout() const;
  int32_t most_merged_rows() const;
  int32_t most_rows() const;
};

}  // namespace kvreplay
