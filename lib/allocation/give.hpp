#pragma once
#include <vector>

#include "catalog/cell.hpp"

namespace kvreplay {

// A cell that gets a share of the budget, and the index of its head among the heads that were scored.
struct Receiver {
  Cell* cell;
  size_t head;
};

// Every head of some layers of a trace, for any prompt. layers: see HeadSource::layers.
std::vector<Place> heads_of(const std::vector<Place>& layers);
// Index of the cell's head among `heads`.
size_t place_of(const Cell& cell, const std::vector<Place>& heads);

// Sets a cell's share of a budget. Throws ConfigError if its method cannot work with it.
void give(Cell& cell, int32_t tokens);

// The head holds the first and the newest tokens at every step, whichever method cuts the other heads. It is replayed
// as StreamingLLM; results show the cell's configured method.
void stream_ends(Cell& cell, Protect ends);

}  // namespace kvreplay
