#pragma once
#include <span>

#include "replay/lane.hpp"

namespace kvreplay {

// What the ledgers of a cell's caches are worth (measures.md, section 3).
struct CellSizes {
  int32_t row_floats = 0;    // d + dv
  int32_t stored_bytes = 4;  // of one number in the trace
  int32_t full_tokens = 0;   // of the exact cache at the last row
  bool shared = false;       // all caches read one full cache
};
// Sizes are per set, bytes and numbers summed over the sets of the cell. A cache that spans a layer charges
// each kv head its own rows.
void account_cell(std::span<const LaneLedger* const> ledgers, const CellSizes& sizes, CellMeasures& measures);

}  // namespace kvreplay
