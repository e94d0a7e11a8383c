#pragma once
#include "calibration/known_queries.hpp"
#include "exact/head_stream.hpp"

namespace kvreplay {

// Rows 0 .. tokens - 1 of every query head of a stream, as statistics are learnt from them.
template <class Real>
QueryRows query_rows(const HeadStream<Real>& s, int32_t tokens) {
  const auto show_head = [&s, tokens](int32_t head, const QueryRows::Show& show) {
    const size_t dim = size_t(s.shape.dim);
    const Real* const keys = s.block_keys(s.shape.block_of(head));
    std::vector<double> query(dim), key(dim);
    for (int32_t t = 0; t < tokens; ++t) {
      std::copy_n(s.query(head, t), dim, query.begin());
      std::copy_n(keys + int64_t(t) * s.shape.dim, dim, key.begin());
      show(query, key, s.positions[size_t(t)]);
    }
  };
  return {tokens, show_head};
}
template <class Real>
QueryShape query_shape(const HeadStream<Real>& s) {
  return {
      s.shape.heads, s.shape.dim, {s.inv_freq.data(), int32_t(s.inv_freq.size()), s.interleaved, s.attention_factor}};
}

}  // namespace kvreplay
