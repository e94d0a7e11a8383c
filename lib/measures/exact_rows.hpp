#pragma once
#include <vector>

#include "exact/tile.hpp"
#include "measures/row_result.hpp"
#include "measures/scored_norms.hpp"

namespace kvreplay {

// Properties of the exact rows of a tile, [heads, rows]; only scored rows are filled.
template <class Real>
std::vector<ExactRow> exact_rows(const Tile<Real>& tile, ScoredNorms<Real>& norms);

// Fills the projections of a cache's errors on the gradient, if the stream has one. first_head: the cache's first head
// in the tile.
template <class Real>
void project_errors(const Tile<Real>& tile, int32_t first_head, const Sensitivity& sensitivity,
                    RowResults<Real>& results);

// Compares the outputs of a cache's scored rows, including side outputs, with the exact ones and fills in the errors.
// first_head: the cache's first head in the tile.
template <class Real>
void compare_outputs(const Tile<Real>& tile, int32_t first_head, bool details, RowResults<Real>& results);

}  // namespace kvreplay
