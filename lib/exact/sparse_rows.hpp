#pragma once
#include <functional>
#include <vector>

#include "exact/tile.hpp"

namespace kvreplay {

// The exact pass for tiles in which few tokens have a row (sampled queries): rows of several tiles are
// computed together, so that keys and values are read once for many of them, and handed out tile by tile.
template <class Real>
class SparseRows {
 public:
  explicit SparseRows(const ExactAttention<Real>& exact) : exact_(exact) {}
  // Does what exact_pass() does. rows_from(t) gives the rows that tiles from token t on will have, as many as
  // fit into one tile.
  void fill(Tile<Real>& tile, const std::function<std::vector<int32_t>(int32_t t)>& rows_from);

 private:
  bool holds(const Tile<Real>& tile) const;
  void copy_rows(Tile<Real>& tile) const;
  const ExactAttention<Real>& exact_;
  Tile<Real> batch_;
};

}  // namespace kvreplay
