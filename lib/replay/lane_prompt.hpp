#pragma once
#include "replay/lane.hpp"

namespace kvreplay {

// What a cache is shown of the prompt.
struct PromptReader {
  int32_t first_head, heads;  // its query heads
  Aggregate aggregate;
};

// Sums over rows alone, of its heads.
template <class Real>
typename Prompt<Real>::View prompt_sums_of(const PromptReader& reader, const HeadStream<Real>& s,
                                           const PromptSums& sums) {
  typename Prompt<Real>::View view{};
  const bool by_row = reader.aggregate == Aggregate::max && reader.heads == s.shape.heads;
  if (sums.columns != nullptr) view.column_sums = sums.columns + int64_t(reader.first_head) * s.prompt;
  if (sums.columns != nullptr && by_row)
    view.column_max_sums = sums.columns + int64_t(reader.heads) * s.prompt;
  if (sums.future != nullptr) view.future_sums = sums.future + int64_t(reader.first_head) * s.tokens;
  return view;
}

// held: the cache's memory, whose keys and values it may look at.
template <class Real>
Prompt<Real> prompt_of(const PromptReader& reader, const HeadStream<Real>& s, const PromptSums& sums,
                       const CacheStorage<Real>& held, const PromptNeeds& needs) {
  typename Prompt<Real>::View view = prompt_sums_of(reader, s, sums);
  view.keys = held.keys, view.values = held.values;
  view.key_block = held.key_block, view.value_block = held.value_block;
  view.tokens = s.tokens, view.size = s.prompt, view.shape = held.shape;
  view.aggregate = reader.aggregate, view.scale = double(s.rule.scale);
  if (needs.queries) {
    view.queries = s.query(reader.first_head, 0);
    view.query_head = int64_t(s.query_rows) * s.shape.dim;
  }
  if (!s.classes.empty()) view.classes = s.classes.data();
  view.positions = s.positions.data();
  view.rope = {s.inv_freq.data(), int32_t(s.inv_freq.size()), s.interleaved, s.attention_factor};
  return Prompt<Real>(view);
}

}  // namespace kvreplay
