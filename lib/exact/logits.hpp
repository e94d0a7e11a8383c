#pragma once
#include <cmath>

#include "exact/head_stream.hpp"

// From products of queries and keys to exponents.

namespace kvreplay {

// Makes logits of n products but for a factor, which is returned: the exponential applies it for nothing.
template <class Real>
Real leave_scale(const LogitRule<Real>& rule, Real* products, int32_t n) {
  const Real scale = rule.factor * rule.scale;
  if (!(rule.softcap > 0) && scale > 0) return scale;
  for (int32_t i = 0; i < n; ++i) products[i] = rule(products[i]);
  return 1;
}

}  // namespace kvreplay
