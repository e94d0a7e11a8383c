#pragma once
#include <algorithm>
#include <vector>

#include "exact/head_stream.hpp"

namespace kvreplay {

// Queries of these tokens, which must all have one: [heads, tokens, dim].
inline std::vector<float> queries_of(const HeadStream<float>& stream, const std::vector<int32_t>& tokens) {
  const size_t dim = size_t(stream.shape.dim), count = tokens.size();
  std::vector<float> numbers(size_t(stream.shape.heads) * count * dim);
  for (size_t r = 0; r < count; ++r) {
    stream.hold_queries(tokens[r], tokens[r]);
    for (int32_t h = 0; h < stream.shape.heads; ++h)
      std::copy_n(stream.query(h, tokens[r]), dim, numbers.data() + (size_t(h) * count + r) * dim);
  }
  return numbers;
}

}  // namespace kvreplay
