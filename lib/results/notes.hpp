#pragma once
#include "results/note.hpp"
#include "results/seen_cells.hpp"

namespace kvreplay {

// The notes on a table, sorted by kind, then instances, then budgets.
Notes notes_of(const SeenCells& seen);

}  // namespace kvreplay
