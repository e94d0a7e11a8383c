#pragma once
#include <cstdint>
#include <vector>

#include "kernels/panels.hpp"
#include "kernels/table.hpp"

// Dense arithmetic on tiles: the only part of the engine that depends on instruction sets. Single-threaded on purpose
// (threads run over kv heads). All matrices are row-major. The numbers that a call writes to a row depend only on that
// row's inputs, so tiles may be cut anywhere. Outputs beyond the stated extents are not touched. The instruction set is
// chosen once (isa_path); it affects only the last bits.

namespace kvreplay::kernels {

// out[m, count] (leading dimension ldo) = q[m, d] (ldq) * keys[first..first + count)^T; `first` is a multiple
// of kPanel.
template <class Real>
void scores(const Real* q, int64_t ldq, int32_t m, const KeyPanels<Real>& keys, int32_t first, int32_t count, Real* out,
            int64_t ldo);

// out[m, n] (ldo) = a[m, k] (lda) * b[k, n]; add: += instead.
template <class Real>
void multiply(const Real* a, int64_t lda, int32_t m, const Real* b, int32_t k, int32_t n, Real* out, int64_t ldo,
              bool add = false);

// row[i] = exp(scale row[i] - shift) for i < n; exponents must not be positive beyond rounding. 0 where the result
// would be below the least normal number, exactly 1 at an exponent of 0; NaN stays NaN.
template <class Real>
RowSums exponentiate(Real* row, int32_t n, Real scale, Real shift);

template <class Real>
double sum(const Real* x, int32_t n);
// out[i] = x[i] factor[i]; returns their sum.
template <class Real>
double weigh(const Real* x, const Real* factor, int32_t n, Real* out);
// score[i] = carry score[i] + weight e[i]
template <class Real>
void accumulate(const Real* e, double weight, double carry, int32_t n, double* score);
// The lowest score[i] + guard[i]; among equal ones the largest token[i] (convention C8).
Lowest lowest(const double* score, const double* guard, const int32_t* token, int32_t n);

// -infinity if n is 0, NaN if one number is NaN.
template <class Real>
Real row_maximum(const Real* row, int32_t n);

// out[i] = from[index[i]] for i < n; returns their sum.
template <class Real>
double gather(const Real* from, const int32_t* index, int32_t n, Real* out);

// Sum of x ln x over row[0..n), 0 where x is 0; no number may be negative.
template <class Real>
double sum_x_log_x(const Real* row, int32_t n);

// x[i] = ln x[i] for i < n; every number must be positive and normal.
void logarithms(double* x, int32_t n);

// out[i] = a[i] + weight b[i]; out may be a or b.
template <class Real>
void add(const Real* a, const Real* b, Real weight, int64_t n, Real* out);
// out[i] = (a[i] + b[i]) factor; out may be a or b.
template <class Real>
void finish(const Real* a, const Real* b, Real factor, int64_t n, Real* out);

// Sums over the n numbers of an output `mine` and the exact one.
template <class Real>
Distance distance(const Real* mine, const Real* exact, int32_t n);
template <class Real>
Comparison compare(const Real* mine, const Real* exact, int32_t n, double tau);
// out[i] = <directions[i], mine - exact> for i < count; directions: bf16 numbers [count, n].
template <class Real>
void project(const Real* mine, const Real* exact, const uint16_t* directions, int32_t count, int32_t n, float* out);

// Squared Euclidean distances of `point` [d] to kLanes others, stored coordinate by coordinate: others [d, kLanes].
// Differences are squared and added coordinate after coordinate, so equal points have equal distances in every lane.
void squared_distances(const double* others, const double* point, int32_t d, double* out);

}  // namespace kvreplay::kernels

namespace kvreplay {
// The path of the kernels, chosen at the first call of any of them: the best that processor and operating system
// support, or the one that KVREPLAY_ISA names (portable, avx2, avx512, avx512bf16, amx). Throws ConfigError if there is
// no such path or the machine lacks it.
const char* isa_path();
}  // namespace kvreplay
