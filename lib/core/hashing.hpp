#pragma once
#include <cmath>
#include <cstdint>

#include "core/platform.hpp"

namespace kvreplay {

// Locality-sensitive hashing by signs: K columns of a projection [columns, d] form one table (methods/magicpig.hpp).

// The signs of x(c), c < d, in one table, as a number.
KVR_FN double sign_code(const double* projection, int32_t d, int32_t K, int32_t table, auto x) {
  double bits = 0;
  for (int32_t b = 0; b < K; ++b) {
    const double* const column = projection + (int64_t(table) * K + b) * d;
    double sum = 0;
    KVR_SIMD_SUM(sum) for (int32_t c = 0; c < d; ++c) sum += x(c) * column[c];
    bits = 2 * bits + (sum > 0 ? 1 : 0);
  }
  return bits;
}

// Probability that two vectors at this cosine agree in all K signs of at least `least` of L tables.
KVR_FN inline double agreement_chance(double cosine, int32_t K, int32_t L, int32_t least) {
  const double angle = std::acos(cosine > 1 ? 1 : cosine < -1 ? -1 : cosine);
  const double table = std::pow(1 - angle / 3.14159265358979323846, K);
  // Probability of fewer tables: terms C(L, m) table^m (1 - table)^(L - m).
  double fewer = 0, ways = 1;
  for (int32_t m = 0; m < least; ++m) {
    fewer += ways * std::pow(table, m) * std::pow(1 - table, L - m);
    ways *= double(L - m) / (m + 1);
  }
  return 1 - fewer;
}

}  // namespace kvreplay
