#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/attend.hpp"
#include "evaluate/workspace.hpp"
#include "exact/tile.hpp"
#include "kernels/panels.hpp"

namespace kvreplay {

// Rows that have no strip, for a cache that is replayed row by row and holds tokens of the trace as they
// stand: products of a tile's queries with every key that the cache may hold in it, computed together. A key
// keeps its slot for as long as the cache holds its token, so that a tile packs only what is new.
template <class Real>
class RowProducts {
 public:
  // Products for the tokens of the tile that have no strip. `cache` as it stands before token tile.begin
  // arrives, its query heads from first_head on; no row of it is its own, and each has weight 1. Without
  // such tokens nothing is computed.
  void open(const HeadStream<Real>& stream, const Tile<Real>& tile, const BasicCache<Real>& cache, int32_t first_head,
            Workspace<Real>& w);
  // C_t stands, for fill().
  void see(const BasicCache<Real>& cache);
  // e_i = exp(l_i - shift) for the rows of C_t; returns the shift, the largest logit. head: of the cache.
  Real fill(const QueryView<Real>& view, int32_t head, const Workspace<Real>& w, std::span<Real> e) const;

 private:
  void assign_slots(const HeadStream<Real>& stream, const Tile<Real>& tile, const BasicCache<Real>& cache);
  void free_slots(const BasicCache<Real>& cache);
  void grow(const HeadStream<Real>& stream, int32_t slots);
  void put(const HeadStream<Real>& stream, int32_t slot);

  HeadShape shape_{};
  int32_t first_block_ = 0, begin_ = 0;
  int32_t used_ = 0;                             // slots 0..used - 1 may hold a key
  std::vector<kernels::KeyPanels<Real>> keys_;   // [blocks]
  std::vector<int32_t> slot_of_, token_in_;      // [tokens] -1: none; [slots] -1: none
  std::vector<int32_t> free_;                    // slots, the lowest last
  std::vector<uint8_t> held_;                    // [slots] scratch
  std::vector<int32_t> without_strip_, row_of_;  // tokens; [tile] their places among them
  std::vector<int32_t> row_slots_;               // of each row of C_t
};

// Where a row's weights come from: the strip, or products of its own.
template <class Real>
struct TileSource {
  StripGather<Real> strip;
  const RowProducts<Real>* products;  // null: the strip, or the cache's own dot products where there is none
  int32_t head;
  const Workspace<Real>& w;
  template <Team T, Cache C>
  Real fill(const T& team, const C& cache, std::span<Real> e) const {
    const QueryView<Real>& view = strip.own.view;
    // What a query did not choose is no part of the maximum.
    if (products == nullptr || view.chosen != nullptr) return strip.fill(team, cache, e);
    return products->fill(view, head, w, e);
  }
};

}  // namespace kvreplay
