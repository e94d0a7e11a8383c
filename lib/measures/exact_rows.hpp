#pragma once
#include <vector>

#include "exact/tile.hpp"
#include "measures/row_result.hpp"
#include "measures/scored_norms.hpp"

namespace kvreplay {

// What the exact rows of a tile say for themselves, [heads, rows]; only scored rows are filled.
template <class Real>
std::vector<ExactRow> exact_rows(const Tile<Real>& tile, ScoredNorms<Real>& norms);

// Fills in, where the stream has a gradient, the projections of a cache's errors on it.
template <class Real>
void project_errors(const Tile<Real>& tile, int32_t first_head, const Sensitivity& sensitivity,
                    RowResults<Real>& results);

// Fills in how the outputs of a cache's scored rows compare with the exact ones, side outputs included. first_head:
// of the cache in the tile.
template <class Real>
void compare_outputs(const Tile<Real>& tile, int32_t first_head, bool details, RowResults<Real>& results);

}  // namespace kvreplay
