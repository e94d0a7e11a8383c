#pragma once
#include <span>

#include "caches/ledger.hpp"
#include "measures/metrics.hpp"

namespace kvreplay {

// Tokens that a cache without a method holds: all, or those of a layer's sliding window.
struct HeldTokens {
  int32_t at_end = 0, after_prompt = 0;  // 0: there is no prompt
  double mean = 0;                       // over S_t, from the end of the prompt on
};
HeldTokens held_by_exact(int32_t tokens, int32_t prompt, int32_t window);

// What the ledgers of a cell's caches come to (measures.md, section 3).
struct CellSizes {
  int32_t row_floats = 0;    // d + dv
  int32_t stored_bytes = 4;  // of one number in the trace
  HeldTokens full;           // by the exact cache
  bool shared = false;       // all caches read one full cache
  bool own_index = false;    // and each has an index of its own beside it
};
// Sizes are per set, bytes and numbers summed over the sets of the cell. A cache that spans a layer charges each
// kv head its own rows.
void measure_sizes(std::span<const Ledger* const> ledgers, const CellSizes& sizes, Measured& to);

}  // namespace kvreplay
