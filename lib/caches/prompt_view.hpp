#pragma once
#include "calibration/known_queries.hpp"
#include "core/cache.hpp"
#include "exact/head_stream.hpp"

namespace kvreplay {

// Sums over rows of the prompt and, for oracles, over future rows, and statistics of queries. Each covers all heads of
// the stream; null if not requested.
struct PromptSums {
  const double *columns = nullptr, *future = nullptr;  // [heads, prompt], [heads, tokens]
  const double* received = nullptr;     // like columns, over the rows whose attention the merge rule uses
  const KnownQueries* known = nullptr;  // over all heads
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

// Everything that the policy of a cache may read of the prompt. held: the cache's memory, whose keys and values it
// reads.
template <class Real>
Prompt<Real> prompt_view(const HeadStream<Real>& s, const PromptSums& sums, int32_t first_head, Aggregate how,
                         const CacheStorage<Real>& held, bool queries) {
  typename Prompt<Real>::View view = sums_view(s, sums, first_head, held.shape.heads, how);
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
  if (!s.sink_logits.empty()) view.sink_logits = s.sink_logits.data() + first_head;
  if (queries) {
    view.queries = s.query(first_head, 0);
    view.query_head = int64_t(s.query_rows) * s.shape.dim;
  }
  if (!s.classes.empty()) view.classes = s.classes.data();
  if (!s.output_norms_l2.empty()) view.output_norms = s.output_norms_l2.data() + int64_t(first_head) * s.prompt;
  view.positions = s.positions.data();
  view.rope = {s.inv_freq.data(), int32_t(s.inv_freq.size()), s.interleaved, s.attention_factor};
  return Prompt<Real>(view);
}

}  // namespace kvreplay
