#pragma once
#include <algorithm>

#include "theory/log_number.hpp"

// BalanceKV, Han et al. 2025, Theorems 3.1 to 3.5. r bounds ||k|| and ||q||, without the logits' 1/sqrt(d), which is
// part of the formulas. s_v = v_dim.

namespace kvreplay::theory {

// r^2/sqrt(d): the logit of the largest key and query. Device kernels call it too, which constexpr allows.
constexpr double largest_logit(double r, double d) { return r * r / std::sqrt(d); }

// T = max(0, ceil(log2(n/t))): halvings after which n tokens fit in a batch of t.
inline double merge_levels(double n, double t) { return std::max(0.0, std::ceil(std::log2(n / t))); }

struct BalanceKv {
  LogNumber t = 0;     // tokens per batch
  double levels = 0;   // T
  double buckets = 0;  // most buckets of the numerator

  // t = ceil(c ln^2(s_v n) sqrt(s_v) exp(2 r^2/sqrt(d))/eps), buckets 1 + log2(2 n exp(r^2/sqrt(d))/eps).
  static BalanceKv of(double epsilon, double r, double n, double d, double v_dim, double c = 1) {
    const double logs = std::log(v_dim) + std::log(n), logit = largest_logit(r, d);
    const LogNumber t = (LogNumber(c) * (logs * logs * std::sqrt(v_dim)) * LogNumber::exp(2 * logit) / epsilon).ceil();
    const double buckets = 1 + (std::log(2 / epsilon) + std::log(n) + logit) / std::log(2.0);
    return {t, merge_levels(n, t.nearest()), buckets};
  }
  // No batch is ever full: every token stays, and the theorem gives no bound.
  bool keeps_everything(double n) const { return t >= LogNumber(n); }

  // Each level holds at most t pairs. pairs(): one MergeAndReduce; rows(): the denominator and all buckets.
  LogNumber pairs() const { return t * (levels + 1); }
  LogNumber rows() const { return pairs() * (buckets + 1); }
  LogNumber time_per_step() const { return t * t; }  // operations, order of magnitude
};

// SoftmaxBalance of n vectors, with probability 1 - delta:
// c sqrt(s_v) ln(n s_v/delta) exp(||q||^2/(2 sqrt d)) exp(max ||k||^2/(2 sqrt d)) max ||v||.
struct SoftmaxBalanceInputs {
  double n, d, v_dim, delta, query_norm, key_norm, value_norm;
};
inline LogNumber softmax_balance_discrepancy(const SoftmaxBalanceInputs& x, double c = 1) {
  const double logs = std::log(x.n) + std::log(x.v_dim) - std::log(x.delta);
  const double logits = (largest_logit(x.query_norm, x.d) + largest_logit(x.key_norm, x.d)) / 2;
  return LogNumber(c) * (std::sqrt(x.v_dim) * logs) * LogNumber::exp(logits) * x.value_norm;
}

// Error of MergeAndReduce for the unnormalised sum at token j: eps j exp(-r^2/sqrt(d)) max ||v||.
inline LogNumber merge_and_reduce_error(double epsilon, double j, double r, double d, double value_norm) {
  return LogNumber(epsilon) * j * LogNumber::exp(-largest_logit(r, d)) * value_norm;
}

}  // namespace kvreplay::theory
