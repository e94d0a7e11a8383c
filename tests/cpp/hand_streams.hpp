#pragma once
#include "support.hpp"

// Streams small enough to check by hand: one dimension, queries 1, no scaling; the value of token i is i.

namespace kvreplay::test {

HeadStream<double> stream_of_keys(const std::vector<double>& keys, int32_t prompt, int32_t heads = 1);
// Keys ln w: attention is proportional to w.
HeadStream<double> weighted_stream(const std::vector<double>& w, int32_t prompt, int32_t heads = 1);

}  // namespace kvreplay::test
