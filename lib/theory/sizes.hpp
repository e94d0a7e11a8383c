#pragma once
#include <numbers>

#include "theory/log_number.hpp"

namespace kvreplay::theory {

// H2O, Zhang et al. 2023, Theorem 4.4: a greedy choice reaches f(S) >= (1 - alpha)(1 - 1/e) max f - beta. The paper
// leaves alpha and beta open, so this is a line to draw, not a bound to test.
constexpr double kGreedyLine = 1 - 1 / std::numbers::e;

// Sizes of caches that depend only on their number of tokens.

// layers * kv_heads * tokens * (d + v_dim) numbers of `bytes` each; 2 L H tokens d bytes if values are as wide as keys.
inline LogNumber cache_bytes(double layers, double kv_heads, double tokens, double d, double v_dim, double bytes) {
  return LogNumber(layers) * kv_heads * tokens * (LogNumber(d) + v_dim) * bytes;
}

// Size of int4 relative to float16 (H2O, Table 5): codes of 4 bits, and an offset and a step in float16 for each
// `group` numbers. 0.28125 for groups of 64.
inline double int4_share(double group = 64) { return (4 + 2 * 16 / group) / 16; }

}  // namespace kvreplay::theory
