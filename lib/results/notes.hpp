#pragma once
#include "results/note.hpp"
#include "results/seen_cells.hpp"

namespace kvreplay {

// What is to be said of a table: kinds in their order, then instances in theirs, then budgets.
Notes notes_of(const SeenCells& seen);

}  // namespace kvreplay
