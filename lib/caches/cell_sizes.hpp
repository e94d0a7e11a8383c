#pragma once
#include <span>

#include "caches/ledger.hpp"
#include "measures/metrics.hpp"

namespace kvreplay {

// What the ledgers of a cell's caches come to (measures.md, section 3).
struct CellSizes {
  int32_t row_floats = 0;    // d + dv
  int32_t stored_bytes = 4;  // of one number in the trace
  int32_t full_tokens = 0;   // of the exact cache at the last row
  bool shared = false;       // all caches read one full cache
  bool own_index = false;    // and each has an index of its own beside it
};
// Sizes are per set, bytes and numbers summed over the sets of the cell. A cache that spans a layer charges each
// kv head its own rows.
void measure_sizes(std::span<const Ledger* const> ledgers, const CellSizes& sizes, Measured& to);

}  // namespace kvreplay
