#pragma once
#include <cmath>

#include "exact/head_stream.hpp"

// From query-key products to exponents.

namespace kvreplay {

// Turns n products into logits except for a factor, which it returns: the exponential applies the factor at no cost.
template <class Real>
Real leave_scale(const LogitRule<Real>& rule, Real* products, int32_t n) {
  const Real scale = rule.factor * rule.scale;
  if (!(rule.softcap > 0) && scale > 0) return scale;
  for (int32_t i = 0; i < n; ++i) products[i] = rule(products[i]);
  return 1;
}

}  // namespace kvreplay
