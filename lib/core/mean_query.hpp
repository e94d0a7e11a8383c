#pragma once
#include "core/rotary.hpp"
#include "core/vectors.hpp"

namespace kvreplay {

// Mean of the queries of one head before rotation (methods/triattention.hpp, steps 1 and 2).
struct MeanQuery {
  std::span<double> mean;   // [dim]
  std::span<double> sizes;  // [pairs] mean modulus of each pair of channels

  template <class Real>
  KVR_FN void take(const Team auto& team, const Prompt<Real>& prompt, int32_t head) const {
    const std::span<const double> of = prompt.mean_query(head), lengths = prompt.query_sizes(head);
    team.each(int32_t(mean.size()), [&](int32_t c) { mean[size_t(c)] = of[size_t(c)]; });
    team.each(int32_t(sizes.size()), [&](int32_t f) { sizes[size_t(f)] = lengths[size_t(f)]; });
  }
  // Writes to `to` the mean query, rotated to position `next` + D and averaged over D = first, 2 first, ... up to
  // `last`. Its product with a stored key is the sum over all pairs of channels, times `weight`, plus the sum over the
  // channels that do not rotate.
  KVR_FN void look_ahead(const Team auto& team, const RopeView& rope, int32_t next, int32_t first, int32_t last,
                         double weight, std::span<double> to) const {
    team.each(int32_t(mean.size()), [&](int32_t c) { to[size_t(c)] = mean[size_t(c)]; });
    team.each(rope.pairs, [&](int32_t f) {
      double c = 0, s = 0;
      int32_t count = 0;
      for (int32_t ahead = first; ahead <= last; ahead *= 2, ++count) {
        const double angle = (double(next) + ahead) * rope.inv_freq[f];
        c += std::cos(angle), s += std::sin(angle);
      }
      rotate_pair(rope, f, weight * c / count, weight * s / count, to.data());
    });
  }
};

}  // namespace kvreplay
