#pragma once
#include <functional>
#include <vector>

#include "exact/tile.hpp"

namespace kvreplay {

// The exact pass for tiles in which few tokens have a row (sampled queries). It computes the rows of several tiles
// together, so that it reads keys and values once for many rows, and hands them out tile by tile.
template <class Real>
class SparseRows {
 public:
  explicit SparseRows(const ExactAttention<Real>& exact) : exact_(exact) {}
  // Fills the tile as exact_pass() does. rows_from(t) returns the rows that the tiles from token t on will need, as
  // many as fit into one tile.
  void fill(Tile<Real>& tile, const std::function<std::vector<int32_t>(int32_t t)>& rows_from);

 private:
  bool holds(const Tile<Real>& tile) const;
  void copy_rows(Tile<Real>& tile) const;
  const ExactAttention<Real>& exact_;
  Tile<Real> batch_;
};

}  // namespace kvreplay
