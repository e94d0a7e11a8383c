#pragma once
#include <span>
#include <vector>

#include "replay/lane.hpp"
#include "replay/tile_output.hpp"

namespace kvreplay {

// What is measured beside the output of a cache, row by row: whether it renormalised a subset, what its
// choice of tokens alone costs, what the prompt's rows alone give, what it holds of the needles, and which
// rows its query heads read together.
template <class Real>
class RowWatch {
 public:
  void bind(const HeadStream<Real>& stream, const LaneWatch& watch, bool oneshot);
  // Before the rows of a tile: makes room for what is asked.
  void open(LaneTile<Real>& result) const;

  // One (query head, row) after it attended.
  struct Seen {
    const Tile<Real>& tile;
    int32_t head, tile_head, row;  // head: of the cache
    const BasicCache<Real>& cache;
    const QueryView<Real>& view;
    std::span<const int32_t> tokens;  // attended to, each once
    Normaliser tau;
    const Real* shares;  // [rows of the cache] den_i exp(l_i) / tau
  };
  void see(const Seen& seen, TileOutput<Real>& output, LaneWorkspace<Real>& w, LaneTile<Real>& result) const;
  // Of query-time methods: the rows that any head has read so far in this step.
  std::span<const uint8_t> read(int32_t head, const uint8_t* chosen, int32_t rows);

 private:
  double prefix_weight(const Seen& seen) const;
  double set_coefficients(const Seen& seen, Real* to, const TileOutput<Real>& output) const;
  double own_coefficients(const Seen& seen, Real* to, const TileOutput<Real>& output) const;

  const HeadStream<Real>* stream_ = nullptr;
  LaneWatch watch_;
  bool prefix_ = false;
  std::vector<uint8_t> read_;
};

// Whether a row's output renormalises the exact attention over the attended tokens: each of them once, as it
// is in the trace, with weight 1, where it was recorded, at the layer's temperature.
template <class Real>
bool is_plain(const BasicCache<Real>& cache, const QueryView<Real>& view, size_t attended);

}  // namespace kvreplay
