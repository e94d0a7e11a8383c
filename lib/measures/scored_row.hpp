#pragma once
#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/kernels.hpp"
#include "measures/row_measure.hpp"
#include "measures/wanted.hpp"

namespace kvreplay {

// One (query head, row) of a cell: every number that some measure needs, wherever it was computed.
struct ScoredRow {
  static constexpr double kNone = -1;  // of side errors

  int32_t token = 0, v_dim = 0;  // t
  int32_t visible = 0;           // tokens that the exact row attends to
  RowMeasure m;
  kernels::Distance distance{};
  kernels::Comparison comparison{};  // with Wanted::details, or where m.spread is set
  double error = 0, norm = 0;        // ||z - o||, ||o||
  bool skipped = false;              // ||o|| is too small to divide by
  double l2 = 0;                     // ||x||_2 of the exact probabilities
  double log_normaliser = 0;         // of the exact row, ln sum exp(l_i); where m.spread is set
  double v_frobenius = 0, v_operator = 0, v_largest = 0;  // norms of V_0..t
  double prefix_error = kNone, set_error = kNone;  // relative, of other pairs of outputs; kNone: not there
  bool has_set = false;                            // someone asks for it
  std::span<const double> needles;                 // see needle_shares; empty without needles

  void set_token(int32_t t, int32_t window) {
    token = t, visible = window > 0 ? std::min(t + 1, window) : t + 1;
  }
  void set_distance(kernels::Distance d, double tiny_norm) {
    distance = d;
    error = std::sqrt(d.error2), norm = std::sqrt(d.exact2);
    skipped = norm < tiny_norm;
  }
  static bool compares(const RowMeasure& m, const Wanted& wanted) {
    return wanted.details || m.spread != kUnset;
  }
};

// ||out / weight - exact|| / ||exact||, or kNone where there is neither an output nor a norm.
template <class Real>
double side_error(const SideOutput<Real>& side, size_t at, const Real* exact, int32_t v_dim) {
  if (!(side.weight[at] > 0)) return ScoredRow::kNone;
  const Real* out = side.out.data() + at * size_t(v_dim);
  const double inverse = 1 / side.weight[at];
  double error2 = 0, norm2 = 0;
  for (int32_t c = 0; c < v_dim; ++c) {
    const double o = double(exact[c]), difference = double(out[c]) * inverse - o;
    error2 += difference * difference;
    norm2 += o * o;
  }
  return norm2 > 0 ? std::sqrt(error2 / norm2) : ScoredRow::kNone;
}

// From a tile and a cache's results for it.
template <class Real>
ScoredRow scored_row(const Tile<Real>& tile, const LaneTile<Real>& lane, int32_t tile_head, int32_t lane_head,
                     int32_t row, double tiny_norm, const Wanted& wanted) {
  const size_t exact = size_t(tile.at(tile_head, row)), mine = lane.at(lane_head, row),
               width = size_t(tile.v_dim);
  const size_t values = size_t(tile_head / (tile.heads / tile.blocks)) * tile.rows.size() + size_t(row);
  const Real *const z = lane.out.data() + mine * width, *const o = tile.out.data() + exact * width;
  ScoredRow r;
  r.set_token(tile.rows[size_t(row)], tile.window);
  r.v_dim = tile.v_dim;
  r.m = lane.measures[mine];
  r.set_distance(kernels::distance(z, o, tile.v_dim), tiny_norm);
  if (ScoredRow::compares(r.m, wanted)) r.comparison = kernels::compare(z, o, tile.v_dim, r.m.tau);
  r.l2 = tile.l2[exact];
  if (r.m.spread != kUnset) r.log_normaliser = std::log(tile.z[exact]) + double(tile.shift[exact]);
  r.v_frobenius = tile.v_frobenius[values], r.v_operator = tile.v_operator[values];
  r.v_largest = tile.v_largest[values];
  r.has_set = lane.has_set;
  if (!lane.needles.empty()) {
    const size_t count = lane.needles.size() / lane.cells();
    r.needles = {lane.needles.data() + mine * count, count};
  }
  if (r.skipped) return r;
  if (!lane.prefix.out.empty())
    r.prefix_error = side_error(lane.prefix, mine, tile.prefix_out.data() + exact * width, tile.v_dim);
  if (lane.has_set && !r.m.plain) r.set_error = side_error(lane.set, mine, o, tile.v_dim);
  return r;
}

}  // namespace kvreplay
