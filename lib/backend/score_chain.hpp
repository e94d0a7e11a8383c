#pragma once
#include <cstdint>

namespace kvreplay {

// What a score chain (score_chain_kernel.hpp) is given, and how it ends.

// How a chain ended. One that stopped early leaves `held` and `scores` as they were, and names nobody from
// that step on.
struct ScoreChainEnd {
  enum Why : int32_t {
    done,
    denominator,  // zero or not finite: nothing left to attend to, or NaN
    score,        // one that the chain began with is not finite
    protection,   // more than the budget is protected
  };
  Why why;
  int32_t token;  // at whose step; -1: done
};

// One cache, in device memory.
struct ScoreChain {
  // Numbers of 16 bits, padded with zeros to the kernel's width, 16-byte aligned; low: null with 1 product.
  const uint16_t *q_high, *q_low;  // [heads, rows, width], from the chain's first head on
  const uint16_t *k_high, *k_low;  // [heads / group, tokens, width], from its first kv head on
  const float* sink_logits;        // [heads] or null: they join the denominator only
  // What is held before token `first`, in any order, and its scores, which are finite: [budget], of which
  // `count` count. Afterwards what is held before `last`: min(budget, count + last - first), in another
  // order.
  int32_t* held;
  double* scores;
  float* scratch;    // scratch_floats(), or null: the strip is in shared memory
  int32_t* victims;  // [last - first]: who left at the end of a token's step; -1: nobody
  ScoreChainEnd* end;
  double carry, share;      // score = carry score + share (sum over heads of p); a mean: 1 / heads
  int32_t sinks, recent;    // protected: tokens below `sinks`, and the last `recent`, the newest included
  int32_t budget, count;    // count <= budget, sinks + recent < budget
  int32_t first, last;      // tokens first .. last - 1 arrive
  int32_t first_row, rows;  // row r: the query of token first_row + r
  int32_t tokens, heads, group;  // group: query heads that share a kv head; divides heads
  float scale, softcap;          // 0: no cap
};

}  // namespace kvreplay
