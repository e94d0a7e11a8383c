#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "exact/head_stream.hpp"
#include "measures/operator_norm.hpp"

namespace kvreplay {

// Norms of V_0..t for one kv head.
struct ValueNorm {
  double frobenius = 0, spectral = 0, largest = 0;
};

// Norms of V_0..t for every scored row of a stream, each computed once.
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
    for (; up_to_ <= t; ++up_to_)
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

}  // namespace kvreplay
