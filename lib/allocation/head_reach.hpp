#pragma once
#include <vector>

#include "allocation/give.hpp"
#include "core/share.hpp"

namespace kvreplay {

// Divides the budget of `like` by how far its heads look, measured by their scores. Allocator duo makes the heads that
// look least far stream; headkv gives more tokens to heads that look far. looking: the method that scored the heads.
void share_by_reach(const Cell& like, const BoundMethod& looking, const std::vector<HeadScores>& heads,
                    const std::vector<Receiver>& to);

// Allocator headkv with a file of head importance. layers: see HeadSource::layers.
void share_by_importance(Cell& cell, const std::vector<Place>& layers);

}  // namespace kvreplay
