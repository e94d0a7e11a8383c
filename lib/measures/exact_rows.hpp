#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "exact/head_stream.hpp"
#include "exact/tile.hpp"
#include "measures/operator_norm.hpp"
#include "measures/row_result.hpp"

namespace kvreplay {

// Norms of V_0..t for one kv head.
struct ValueNorm {
  double frobenius = 0, spectral = 0, largest = 0;
};

// Norms of V_0..t for every scored row of a stream, each computed once; 0 with latent attention, whose values are no
// outputs' values, so that bounds do not apply.
template <class Real>
class ScoredNorms {
 public:
  ScoredNorms(const HeadStream<Real>& stream, bool spectral)
      : stream_(stream),
        spectral_(spectral),
        growing_(size_t(stream.shape.blocks), ValueNorms(stream.shape.v_dim, spectral)),
        place_(size_t(stream.tokens), -1) {}
  // One entry per kv head. Calls for new tokens must ascend.
  std::span<const ValueNorm> at(int32_t t) {
    if (place_[size_t(t)] < 0) find(t);
    return {norms_.data() + place_[size_t(t)], growing_.size()};
  }

 private:
  void find(int32_t t) {
    for (; up_to_ <= t && stream_.up_values.empty(); ++up_to_)
      for (size_t b = 0; b < growing_.size(); ++b)
        growing_[b].add(stream_.block_values(int32_t(b)) + int64_t(up_to_) * stream_.shape.v_dim);
    place_[size_t(t)] = int64_t(norms_.size());
    for (ValueNorms& norms : growing_)
      norms_.push_back({norms.frobenius(), spectral_ ? norms.spectral() : 0, norms.largest()});
  }
  const HeadStream<Real>& stream_;
  bool spectral_;
  std::vector<ValueNorms> growing_;  // per kv head, over tokens 0..up_to_ - 1
  int32_t up_to_ = 0;
  std::vector<ValueNorm> norms_;
  std::vector<int64_t> place_;  // [tokens] index into norms_; negative: not computed yet
};

// Outputs of a tile as they are measured, [heads, rows, width]: those of the tile, or what `up_values` makes of them.
template <class Real>
class MeasuredOutputs {
 public:
  explicit MeasuredOutputs(const HeadStream<Real>& stream) : stream_(stream) {}
  int32_t width() const { return stream_.out_dim(); }
  void open(const Tile<Real>& tile);  // for a new tile
  const Real* exact(const Tile<Real>& tile) const { return projects() ? out_.data() : tile.out.data(); }
  const Real* prefix(const Tile<Real>& tile) const { return projects() ? prefix_.data() : tile.prefix_out.data(); }
  // Projects a cache's outputs, including side outputs. first_head: the cache's first head in the stream.
  void project(int32_t first_head, RowResults<Real>& results);

 private:
  bool projects() const { return !stream_.up_values.empty(); }
  void project(int32_t first_head, int32_t heads, const std::vector<Real>& from, std::vector<Real>& to) const;
  const HeadStream<Real>& stream_;
  std::vector<Real> out_, prefix_, spare_;
};

// Properties of the exact rows of a tile, [heads, rows]; only scored rows are filled.
template <class Real>
std::vector<ExactRow> exact_rows(const Tile<Real>& tile, ScoredNorms<Real>& norms);

// Fills the projections of a cache's errors on the gradient, if the stream has one. first_head: the cache's first head
// in the tile.
template <class Real>
void project_errors(const Tile<Real>& tile, const MeasuredOutputs<Real>& outputs, int32_t first_head,
                    const Sensitivity& sensitivity, RowResults<Real>& results);

// Compares the outputs of a cache's scored rows, including side outputs, with the exact ones and fills in the errors.
// first_head: the cache's first head in the tile.
template <class Real>
void compare_outputs(const Tile<Real>& tile, const MeasuredOutputs<Real>& outputs, int32_t first_head, bool details,
                     RowResults<Real>& results);

}  // namespace kvreplay
