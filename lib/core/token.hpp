#pragma once
#include <cassert>
#include <cstdint>
#include <span>

#include "core/platform.hpp"

// What a policy may see: the present token, and the prompt while it is compressed. Neither can be
// copied or kept, and neither leads to a pointer beyond its end.

namespace kvreplay {

// One kv head and the query heads that share one cache (convention C1, C9).
struct HeadShape {
  int32_t dim;    // numbers of a key and of a query
  int32_t v_dim;  // numbers of a value
  int32_t heads;  // query heads that decide together: the group, or 1 with gqa.level query
};

// The present: one token, for the duration of one call.
template <class Real>
class Token {
 public:
  KVR_FN Token(std::span<const Real> k, std::span<const Real> v, int32_t at) : key(k), value(v), index(at) {}
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;

  const std::span<const Real> key, value;
  const int32_t index;  // 0-based in the trace
};

// How the scores of the query heads become one (gqa.agg).
enum class Aggregate : int32_t { sum, mean, max, first };

KVR_FN inline double aggregate(Aggregate how, const double* of_head, int64_t stride, int32_t heads) {
  double a = of_head[0];
  if (how == Aggregate::first) return a;
  for (int32_t h = 1; h < heads; ++h) {
    const double x = of_head[h * stride];
    a = how == Aggregate::max ? (x > a ? x : a) : a + x;
  }
  return how == Aggregate::mean ? a / heads : a;
}

// Tokens 0..size-1 and the statistics of prompt rows that the policy declared it needs
// (PromptNeeds). Valid during compress() only.
template <class Real>
class Prompt {
 public:
  struct View {
    const Real *keys, *values;  // [size, dim], [size, v_dim]
    const double* column_sums;  // [heads, size] or null: see PromptNeeds
    int32_t size;
    HeadShape shape;
    Aggregate aggregate;
  };
  KVR_FN explicit Prompt(const View& view) : view_(view) {}
  Prompt(const Prompt&) = delete;
  Prompt& operator=(const Prompt&) = delete;

  KVR_FN int32_t size() const { return view_.size; }
  KVR_FN HeadShape shape() const { return view_.shape; }
  KVR_FN std::span<const Real> key(int32_t i) const { return at(view_.keys, i, view_.shape.dim); }
  KVR_FN std::span<const Real> value(int32_t i) const { return at(view_.values, i, view_.shape.v_dim); }
  KVR_FN Token<Real> token(int32_t i) const { return {key(i), value(i), i}; }
  // Attention mass that prompt rows first_row..size-1 put on token i, one query head or the group.
  KVR_FN double column_sum(int32_t i, int32_t head) const {
    assert(view_.column_sums != nullptr && i >= 0 && i < view_.size);
    return view_.column_sums[int64_t(head) * view_.size + i];
  }
  KVR_FN double column_sum(int32_t i) const {
    assert(view_.column_sums != nullptr && i >= 0 && i < view_.size);
    return kvreplay::aggregate(view_.aggregate, view_.column_sums + i, view_.size, view_.shape.heads);
  }

 private:
  KVR_FN std::span<const Real> at(const Real* base, int32_t i, int32_t width) const {
    assert(i >= 0 && i < view_.size);
    return {base + int64_t(i) * width, size_t(width)};
  }
  View view_;
};

// Statistics of the prompt's attention rows, computed once and shared by every cache that asks for
// the same. column_sums_from: first row of the sums, or kNoRows.
struct PromptNeeds {
  static constexpr int32_t kNoRows = -1;
  int32_t column_sums_from = kNoRows;
};

}  // namespace kvreplay
