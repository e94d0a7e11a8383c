#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvreplay {

// What BalanceKV's theorems ask for, with constants 1, in logarithms (t is e^32 to e^150 on real keys):
// batches of
//   t = ln^2(s_v n) sqrt(s_v) exp(2 r^2/sqrt(d))/epsilon, on T = max(0, ceil(log2(n/t))) levels;
// at most t (T + 1) pairs in the denominator and in each of 1 + log2(2n exp(r^2/sqrt(d))/epsilon) buckets.
struct BalanceTheory {
  double log10_batch, log10_tokens;
};
inline BalanceTheory balance_theory(double epsilon, double r, double n, int32_t dim, int32_t v_dim) {
  const double r2 = r * r / std::sqrt(double(dim)), logs = std::log(v_dim * n);
  const double ln_t = std::log(logs * logs * std::sqrt(double(v_dim)) / epsilon) + 2 * r2;
  const double T = std::max(0.0, std::ceil((std::log(n) - ln_t) / std::log(2.0)));
  const double buckets = 1 + (std::log(2 * n / epsilon) + r2) / std::log(2.0);
  const double log10_t = ln_t / std::log(10.0);
  return {log10_t, log10_t + std::log10((T + 1) * (buckets + 1))};
}

}  // namespace kvreplay
