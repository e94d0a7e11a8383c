#pragma once
#include <cstdint>
#include <vector>

#include "exact/head_stream.hpp"

namespace kvreplay {

// Which decode rows are scored: every row, the last `count`, or every `count`-th from the first.
struct QuerySelection {
  enum class Kind { all, last, stride } kind = Kind::all;
  int64_t count = 0;
};

// [tokens] 1 for a scored row. Only rows after the prompt that the trace has a query for can be scored.
template <class Real>
std::vector<uint8_t> scored_tokens(const HeadStream<Real>& stream, const QuerySelection& selection);

}  // namespace kvreplay
