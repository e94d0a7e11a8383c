#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/attend.hpp"
#include "evaluate/workspace.hpp"
#include "exact/tile.hpp"
#include "kernels/panels.hpp"

namespace kvreplay {

// For a cache that is replayed row by row, and whose keys are those of tokens, as they were recorded or as a row format
// reads them back: products of a tile's queries with every key that the cache may hold in it, computed together. A key
// keeps its slot for as long as the cache holds its token so, that a tile packs only what is new.
template <class Real>
class RowProducts {
 public:
  // Products for the tokens `queries` of the tile, ascending. `cache` as it stands before token tile.begin arrives, its
  // query heads from first_head on; each row of it has weight 1. Without such tokens nothing is computed.
  void open(const HeadStream<Real>& stream, const Tile<Real>& tile, std::span<const int32_t> queries,
            const BasicCache<Real>& cache, int32_t first_head, Workspace<Real>& w);
  bool has(int32_t token) const { return row_of_[size_t(token - begin_)] >= 0; }
  // C_t stands, for fill().
  void see(const BasicCache<Real>& cache);
  // e_i = exp(l_i - shift) for the rows of C_t; returns the shift, the largest logit. head: of the cache.
  Real fill(const QueryView<Real>& view, int32_t head, const BasicCache<Real>& cache, const Workspace<Real>& w,
            std::span<Real> e) const;

 private:
  void assign_slots(const HeadStream<Real>& stream, const Tile<Real>& tile, const BasicCache<Real>& cache);
  void free_slots(const BasicCache<Real>& cache);
  void grow(int32_t slots);
  bool is_coded(const BasicCache<Real>& cache, int32_t row) const { return !cache.coding(row).key_exact(); }

  HeadShape shape_{};
  int32_t first_block_ = 0, begin_ = 0, queries_ = 0;
  int32_t used_ = 0;                              // slots 0..used - 1 may hold a key
  std::vector<kernels::KeyPanels<Real>> keys_;    // [blocks]
  std::vector<int32_t> slot_of_, token_in_;       // [tokens] -1: none; [slots] -1: none
  std::vector<uint8_t> coded_in_;                 // [slots] whether the key is one that was read back
  std::vector<int32_t> free_;                     // slots, the lowest last
  std::vector<uint8_t> held_;                     // [slots] scratch
  std::vector<int32_t> row_of_;                   // [tile] places among the queries; -1: none
  std::vector<int32_t> row_slots_, coded_since_;  // of each row of C_t; rows whose keys were coded in the tile
};

// The strip has every row but some whose keys are exact, where a row format codes keys row by row; each weight is 1.
template <class Real>
Real fill_from_coded(const StripGather<Real>& strip, std::span<const int32_t> exact_rows, const BasicCache<Real>& cache,
                     std::span<Real> e);

// Where a row's weights come from: the strip, or products of its own.
template <class Real>
struct TileSource {
  StripGather<Real> strip;
  const RowProducts<Real>* products;  // null: the strip, or the cache's own dot products where there is none
  int32_t head;
  const Workspace<Real>& w;
  const std::vector<int32_t>* exact_rows = nullptr;  // of a strip over coded keys, where it has all the others
  template <Team T, Cache C>
  Real fill(const T& team, const C& cache, std::span<Real> e) const {
    const QueryView<Real>& view = strip.own.view;
    // What a query did not choose is no part of the maximum.
    if (view.chosen == nullptr && products != nullptr) return products->fill(view, head, cache, w, e);
    const bool plain = view.chosen == nullptr && view.rule.factor == 1;
    return plain && exact_rows != nullptr ? fill_from_coded(strip, std::span(*exact_rows), cache, e)
                                          : strip.fill(team, cache, e);
  }
};

}  // namespace kvreplay
