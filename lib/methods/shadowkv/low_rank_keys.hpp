#pragma once
#include <vector>

#include "core/linear.hpp"
#include "core/rotary.hpp"

namespace kvreplay {

// Keys of a prompt before rotation, those of all kv heads of the layer side by side, X [P, kv heads * dim], as their
// best approximation of some rank (methods/shadowkv/shadowkv.hpp). It is X W W^T, W the first right singular vectors of
// X.
template <class Real>
class LowRankKeys {
 public:
  LowRankKeys(const Team auto& team, const Prompt<Real>& prompt, int32_t rank)
      : prompt_(prompt),
        dim_(prompt.shape().dim),
        width_(prompt.kv_heads() * dim_),
        rank_(rank),
        row_(size_t(width_)),
        axes_(size_t(rank) * size_t(width_)) {
    std::vector<double> gram(size_t(width_) * size_t(width_), 0);
    for (int32_t i = 0; i < prompt.size(); ++i) {
      read(team, i);
      add_outer(team, gram, row_);
    }
    leading_eigenvectors(gram, width_, rank, axes_);
  }
  // Writes token i's key of the prompt's own head, rotated by its position.
  void write(const Team auto& team, int32_t i, std::span<double> key) {
    read(team, i);
    team.each(dim_, [&](int32_t c) { key[size_t(c)] = 0; });
    for (int32_t j = 0; j < rank_; ++j) {
      const double* const axis = &axes_[size_t(j) * size_t(width_)];
      const double* const own = axis + prompt_.kv_head() * dim_;
      const double along = dot(axis, row_.data(), width_);
      team.each(dim_, [&](int32_t c) { key[size_t(c)] += along * own[c]; });
    }
    const RopeView rope = prompt_.rope();
    rotate(team, rope, prompt_.position(i), key.data());
    team.each(2 * rope.pairs, [&](int32_t c) { key[size_t(c)] *= rope.attention_factor; });
  }

 private:
  // Row i of X.
  void read(const Team auto& team, int32_t i) {
    for (int32_t b = 0; b < prompt_.kv_heads(); ++b)
      unrotate(team, prompt_.rope(), prompt_.position(i), prompt_.layer_key(b, i),
               std::span(row_).subspan(size_t(b) * size_t(dim_), size_t(dim_)));
  }
  const Prompt<Real>& prompt_;
  int32_t dim_, width_, rank_;
  std::vector<double> row_, axes_;  // [width], [rank, width]
};

}  // namespace kvreplay
