#pragma once
#include <cmath>

#include "kernels/kernels.hpp"
#include "measures/row_measure.hpp"

namespace kvreplay {

// One (query head, row) of a cell with what all measures need of it.
template <class Real>
struct ScoredRow {
  const Tile<Real>& tile;
  const LaneTile<Real>& lane;
  size_t exact, mine, values;  // its place in the tile, in the cache's results, in the norms of the values
  int32_t token;               // t
  RowMeasure m;
  kernels::Distance distance;
  double error, norm;  // ||z - o||, ||o||
  bool skipped;        // ||o|| is too small to divide by

  ScoredRow(const Tile<Real>& t, const LaneTile<Real>& l, int32_t tile_head, int32_t lane_head, int32_t row,
            double tiny_norm)
      : tile(t),
        lane(l),
        exact(size_t(t.at(tile_head, row))),
        mine(l.at(lane_head, row)),
        values(size_t(tile_head / (t.heads / t.blocks)) * t.rows.size() + size_t(row)),
        token(t.rows[size_t(row)]),
        m(l.measures[mine]),
        distance(kernels::distance(z(), o(), t.v_dim)),
        error(std::sqrt(distance.error2)),
        norm(std::sqrt(distance.exact2)),
        skipped(norm < tiny_norm) {}
  kernels::Comparison compare() const { return kernels::compare(z(), o(), tile.v_dim, m.tau); }
  const Real* z() const { return lane.out.data() + int64_t(mine) * tile.v_dim; }
  const Real* o() const { return tile.out.data() + int64_t(exact) * tile.v_dim; }
};

}  // namespace kvreplay
