#pragma once
#include <cstdint>

// Dense arithmetic on tiles: the only part of the engine that knows about instruction sets. Single-
// threaded on purpose (threads run over kv heads). All matrices are row-major.

namespace kvreplay::kernels {

// out[m, n] (leading dimension ldo) = a[m, d] (lda) * b[n, d]^T
template <class Real>
void multiply_transposed(const Real* a, int64_t lda, int32_t m, const Real* b, int32_t n, int32_t d,
                         Real* out, int64_t ldo);

// out[m, n] (ldo) = a[m, k] (lda) * b[k, n]
template <class Real>
void multiply(const Real* a, int64_t lda, int32_t m, const Real* b, int32_t k, int32_t n, Real* out,
              int64_t ldo);

struct RowSums {
  double sum, squares;  // of exp(x - shift)
};
// row[i] = exp(row[i] - shift) for i < n.
template <class Real>
RowSums exponentiate(Real* row, int32_t n, Real shift);

template <class Real>
Real row_maximum(const Real* row, int32_t n);

// Sum of x ln x over row[0..n), 0 where x is 0; no number may be negative.
template <class Real>
double sum_x_log_x(const Real* row, int32_t n);

// Squared Euclidean distances of `point` [d] to kLanes others, stored coordinate by coordinate: others [d,
// kLanes]. Differences first, then squares, added coordinate after coordinate, so equal points have equal
// distances whatever their lane.
constexpr int32_t kLanes = 16;
void squared_distances(const double* others, const double* point, int32_t d, double* out);

}  // namespace kvreplay::kernels

namespace kvreplay {
// The instruction set that was chosen at start-up.
const char* isa_path();
}  // namespace kvreplay
