#pragma once
#include "catalog/cell.hpp"

namespace kvreplay {

// A cell that is given its share, and which of the heads that spoke is its own.
struct Receiver {
  Cell* cell;
  size_t head;
};

// Gives a cell its share of a budget. Throws ConfigError where its method cannot live with it.
void give(Cell& cell, int32_t tokens);

// The head holds the first and the newest tokens at every step, whatever cuts the others: it is replayed as
// StreamingLLM, and goes by its own name in results.
void give_ends(Cell& cell, Protect ends);

}  // namespace kvreplay
