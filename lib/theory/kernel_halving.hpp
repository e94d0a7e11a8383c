#pragma once
#include "theory/log_number.hpp"

// Kernel halving (KH-Compress; Low-Rank Thinning, Carrell et al. 2025): n tokens are halved until 2^g sqrt(n) remain.

namespace kvreplay::theory {

inline LogNumber halving_size(double n, double g) { return LogNumber::exp(g * std::log(2.0)) * std::sqrt(n); }
// The order of the error in the literature, c ln(n)/size.
inline LogNumber halving_error(double n, LogNumber size, double c = 1) { return LogNumber(c) * std::log(n) / size; }

}  // namespace kvreplay::theory
