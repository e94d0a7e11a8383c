#pragma once
#include <cmath>

#include "theory/log_number.hpp"

namespace kvreplay::theory {

// Kernel halving (KH-Compress; Low-Rank Thinning, Carrell et al. 2025): n tokens are halved until 2^g sqrt(n) remain.
inline LogNumber halving_size(double n, double g) { return LogNumber::exp(g * std::log(2.0)) * std::sqrt(n); }
// The order of the error in the literature, c ln(n)/size.
inline LogNumber halving_error(double n, LogNumber size, double c = 1) { return LogNumber(c) * std::log(n) / size; }

// The self-balancing walk, Alweiss, Liu and Sawhney 2021, on n vectors u_i of norm at most r, as used by BalanceKV.

// c = 30 ln(n/delta); delta <= 0 means 1/n^2.
inline double walk_constant(double n, double delta) {
  if (delta <= 0) return 30 * (3 * std::log(n));
  return 30 * (std::isfinite(n / delta) ? std::log(n / delta) : std::log(n) - std::log(delta));
}
// The walk fails iff |<W, u_i>| exceeds c r^2.
inline LogNumber walk_failure_threshold(double c, double r) { return LogNumber(c) * r * r; }
// |<sum of signs u_i, u>| <= constant ln(n/delta) max ||u_i|| ||u||, with probability 1 - delta.
inline LogNumber walk_discrepancy(double n, double delta, double r, double u_norm, double constant = 1) {
  return LogNumber(constant) * (walk_constant(n, delta) / 30) * r * u_norm;
}
// Fair coins instead of the walk: of order sqrt(n) instead of ln n.
inline double coin_discrepancy(double n) { return std::sqrt(n); }

// A drift argument, not part of the theorem. Each unit vector adds 1/d to E W_x^2 and pulls it back by 2 W_x^2/(c d),
// so the walk follows the coin for about c d/2 vectors and settles near sqrt(c/2) per coordinate.
inline double walk_crossover(double c, double d) { return c * d / 2; }
inline double walk_plateau(double c) { return std::sqrt(c / 2); }

}  // namespace kvreplay::theory
