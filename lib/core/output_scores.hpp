#pragma once
#include <cstdint>
#include <span>

#include "core/platform.hpp"

namespace kvreplay {

// The score that a row adds to a token in place of its attention probability: to first order, the error of the output
// if the token's value, its key, or both are pruned. OBCache, Gu et al. 2025, sections 3 and 4. The closed forms are
// derived anew from its premise: pruning a key sends its logit to 0. With p the probability, l the logit and o the
// row's output:
//   value: p^2 ||v||^2    key: p^2 l^2 ||v - o||^2    joint: p^2 ||v + l (v - o)||^2
enum class TokenScore { attention, obc_value, obc_key, obc_joint };
constexpr const char* kTokenScores[] = {"attention", "obc_value", "obc_key", "obc_joint"};

// Score of an attended token; for `attention` it is p.
template <class V, class O>
KVR_FN double token_score(TokenScore which, double p, double logit, std::span<V> value, std::span<O> output) {
  if (which == TokenScore::attention) return p;
  const double of_value = which == TokenScore::obc_value ? 1 : which == TokenScore::obc_key ? logit : 1 + logit;
  const double of_output = which == TokenScore::obc_value ? 0 : logit;
  const V* v = value.data();
  const O* o = output.data();
  const int32_t n = int32_t(value.size());
  double square = 0;
  KVR_SIMD_SUM(square) for (int32_t c = 0; c < n; ++c) {
    const double lost = of_value * double(v[c]) - of_output * double(o[c]);
    square += lost * lost;
  }
  return p * p * square;
}

}  // namespace kvreplay
