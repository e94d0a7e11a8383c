#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/attend.hpp"
#include "evaluate/evaluator.hpp"
#include "exact/tile.hpp"
#include "kernels/panels.hpp"

namespace kvreplay {

// For a cache that is replayed row by row and whose keys are tokens' keys, recorded or decoded by a row format:
// products of a tile's queries with every key that the cache may hold in the tile, computed together. A key keeps its
// slot as long as the cache holds its token unchanged, so a tile packs only new keys.
template <class Real>
class RowProducts {
 public:
  // Computes products for the tile's tokens `queries`, ascending; does nothing if there are none. cache: state before
  // token tile.begin arrives, query heads from first_head on, all weights 1.
  void open(const HeadStream<Real>& stream, const Tile<Real>& tile, std::span<const int32_t> queries,
            const BasicCache<Real>& cache, int32_t first_head, Workspace<Real>& w);
  bool has(int32_t token) const { return row_of_[size_t(token - begin_)] >= 0; }
  // Call when C_t is complete, before fill().
  void see(const BasicCache<Real>& cache);
  // Writes e_i = exp(l_i - shift) for the rows of C_t; returns the shift, the largest logit. head: index in the cache.
  Real fill(const QueryView<Real>& view, int32_t head, const BasicCache<Real>& cache, const Workspace<Real>& w,
            std::span<Real> e) const;

 private:
  void assign_slots(const HeadStream<Real>& stream, const Tile<Real>& tile, const BasicCache<Real>& cache);
  void free_slots(const BasicCache<Real>& cache);
  void grow(int32_t slots);
  bool is_coded(const BasicCache<Real>& cache, int32_t row) const { return !cache.coding(row).key_exact(); }

  HeadShape shape_{};
  int32_t first_block_ = 0, begin_ = 0, queries_ = 0;
  int32_t used_ = 0;                              // slots 0..used_ - 1 may hold a key
  std::vector<kernels::KeyPanels<Real>> keys_;    // [blocks]
  std::vector<int32_t> slot_of_, token_in_;       // [tokens] -1: none; [slots] -1: none
  std::vector<uint8_t> coded_in_;                 // [slots] whether the key was decoded
  std::vector<int32_t> free_;                     // free slots, the lowest last
  std::vector<uint8_t> held_;                     // [slots] scratch
  std::vector<int32_t> row_of_;                   // [tile] index into the queries; -1: none
  std::vector<int32_t> row_slots_, coded_since_;  // [rows of C_t]; rows whose keys were coded within the tile
};

// For a row format that codes keys row by row; every weight must be 1. Takes all rows from the strip over coded keys,
// except the exact rows.
template <class Real>
Real fill_from_coded(const StripGather<Real>& strip, std::span<const int32_t> exact_rows, const BasicCache<Real>& cache,
                     std::span<Real> e);

// Source of a row's e: the strip, or products computed for the row.
template <class Real>
struct TileSource {
  StripGather<Real> strip;
  const RowProducts<Real>* products;  // null: use the strip, or the cache's own dot products if there is none
  int32_t head;
  const Workspace<Real>& w;
  const std::vector<int32_t>* exact_rows = nullptr;  // rows that a strip over coded keys lacks; null for other strips
  template <Team T, Cache C>
  Real fill(const T& team, const C& cache, std::span<Real> e) const {
    const QueryView<Real>& view = strip.own.view;
    // The maximum must not include rows that the query did not choose.
    if (view.chosen == nullptr && products != nullptr) return products->fill(view, head, cache, w, e);
    const bool plain = view.chosen == nullptr && view.rule.factor == 1;
    return plain && exact_rows != nullptr ? fill_from_coded(strip, std::span(*exact_rows), cache, e)
                                          : strip.fill(team, cache, e);
  }
};

}  // namespace kvreplay
