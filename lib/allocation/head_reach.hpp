#pragma once
#include <vector>

#include "allocation/give.hpp"
#include "core/share.hpp"

namespace kvreplay {

// Shares out the budget of `like` by how far its heads look, as they said: allocator duo lets those stream that look
// least far, headkv gives more to those that look far. looking: the method that they spoke by.
void give_by_reach(const Cell& like, const BoundMethod& looking, const std::vector<HeadScores>& heads,
                   const std::vector<Receiver>& to);

// Allocator headkv, where a file says how important heads are. layers: as HeadSource::layers.
void give_by_importance(Cell& cell, const std::vector<Place>& layers);

}  // namespace kvreplay
