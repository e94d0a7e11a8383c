#pragma once
#include <vector>

#include "catalog/cell.hpp"

namespace kvreplay {

// A cell that is given its share, and which of the heads that spoke is its own.
struct Receiver {
  Cell* cell;
  size_t head;
};

// Every head of some layers of a trace, whatever the prompt; layers: as HeadSource::layers.
std::vector<Place> heads_of(const std::vector<Place>& layers);
// Where a cell's own head is among them.
size_t place_of(const Cell& cell, const std::vector<Place>& heads);

// Gives a cell its share of a budget. Throws ConfigError where its method cannot live with it.
void give(Cell& cell, int32_t tokens);

// The head holds the first and the newest tokens at every step, whatever cuts the others: it is replayed as
// StreamingLLM, and goes by its own name in results.
void give_ends(Cell& cell, Protect ends);

}  // namespace kvreplay
