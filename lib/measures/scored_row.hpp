#pragma once
#include <cmath>

#include "measures/row_measure.hpp"

namespace kvreplay {

// Sums over the components of one output z against the exact one, o.
struct Comparison {
  double error2 = 0, exact2 = 0, mine2 = 0, inner = 0;  // ||z - o||^2, ||o||^2, ||z||^2, <z, o>
  double positive2 = 0;                                 // ||max(o, kClamp)||^2
  double numerator2 = 0;                                // ||z tau - o||^2
  static constexpr double kClamp = 1e-8;

  template <class Real>
  Comparison(const Real* mine, const Real* exact, int32_t n, double tau) {
    for (int32_t c = 0; c < n; ++c) {
      const double z = double(mine[c]), o = double(exact[c]), p = o > kClamp ? o : kClamp, N = z * tau - o;
      error2 += (z - o) * (z - o);
      exact2 += o * o;
      mine2 += z * z;
      inner += z * o;
      positive2 += p * p;
      numerator2 += N * N;
    }
  }
};

// One (query head, row) of a cell with what all measures need of it.
template <class Real>
struct ScoredRow {
  const Tile<Real>& tile;
  const LaneTile<Real>& lane;
  size_t exact, mine, values;  // its place in the tile, in the cache's results, in the norms of the values
  int32_t token;               // t
  RowMeasure m;
  Comparison c;
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
        c(z(), o(), t.v_dim, m.tau),
        error(std::sqrt(c.error2)),
        norm(std::sqrt(c.exact2)),
        skipped(norm < tiny_norm) {}
  const Real* z() const { return lane.out.data() + int64_t(mine) * tile.v_dim; }
  const Real* o() const { return tile.out.data() + int64_t(exact) * tile.v_dim; }
};

}  // namespace kvreplay
