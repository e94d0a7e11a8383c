#pragma once
#include <cstdint>
#include <vector>

#include "kernels/shapes.hpp"

// Dense arithmetic on tiles: the only part of the engine that knows about instruction sets. Single-
// threaded on purpose (threads run over kv heads). All matrices are row-major. What a call writes into a row
// depends on nothing but that row's inputs, so tiles may be cut anywhere; outputs beyond the stated extents
// are not touched. The instruction set is chosen once (isa_path); it decides the last bits, nothing else.

namespace kvreplay::kernels {

// A matrix [terms, columns] as bf16 numbers in tiles (TileMatrix of table.hpp): each number the sum of a high
// and a low one, or of a high one alone if that is all of it for every number.
struct HalfPanels {
  int32_t term_blocks = 0;
  std::vector<uint16_t> high, low;
  HalfPanels() = default;
  // Number (term, column) is x[term * term_stride + column * column_stride].
  HalfPanels(const float* x, int32_t terms, int32_t columns, int64_t term_stride, int64_t column_stride);
};

// Keys of one kv head, packed once so that scores() reads whole vectors: panels of kPanel keys, each
// [d, kPanel], zeros behind the last key.
template <class Real>
struct KeyPanels {
  int32_t keys = 0, d = 0;
  std::vector<Real> numbers;  // [panels, d, kPanel]
  HalfPanels halves;          // of float keys, where the chosen path multiplies in tiles
  KeyPanels() = default;
  KeyPanels(const Real* k, int32_t n, int32_t dim);  // k: [n, d]
};

// out[m, count] (leading dimension ldo) = q[m, d] (ldq) * keys[first..first + count)^T; `first` is a multiple
// of kPanel.
template <class Real>
void scores(const Real* q, int64_t ldq, int32_t m, const KeyPanels<Real>& keys, int32_t first, int32_t count,
            Real* out, int64_t ldo);

// out[m, n] (ldo) = a[m, k] (lda) * b[k, n]; add: += instead.
template <class Real>
void multiply(const Real* a, int64_t lda, int32_t m, const Real* b, int32_t k, int32_t n, Real* out,
              int64_t ldo, bool add = false);

// Values of one kv head, made ready for products once. `numbers` are the caller's and must outlive this.
template <class Real>
struct ValuePanels {
  const Real* numbers = nullptr;  // [tokens, dim]
  int32_t tokens = 0, dim = 0;
  HalfPanels halves;  // of float values, where the chosen path multiplies in tiles
  ValuePanels() = default;
  ValuePanels(const Real* v, int32_t n, int32_t d);
};

// out[m, dim] (ldo) = a[m, k] (lda) * values[first..first + k); `first` is a multiple of 32; add: += instead.
template <class Real>
void multiply(const Real* a, int64_t lda, int32_t m, const ValuePanels<Real>& values, int32_t first,
              int32_t k, Real* out, int64_t ldo, bool add = false);

// row[i] = exp(scale row[i] - shift) for i < n; no exponent is positive beyond rounding. 0 where the result
// would be below the least normal number, exactly 1 at an exponent of 0; NaN stays NaN.
template <class Real>
RowSums exponentiate(Real* row, int32_t n, Real scale, Real shift);

// -infinity of no numbers, NaN if one of them is.
template <class Real>
Real row_maximum(const Real* row, int32_t n);

// out[i] = from[index[i]] for i < n; returns their sum.
template <class Real>
double gather(const Real* from, const int32_t* index, int32_t n, Real* out);

// Sum of x ln x over row[0..n), 0 where x is 0; no number may be negative.
template <class Real>
double sum_x_log_x(const Real* row, int32_t n);

// Squared Euclidean distances of `point` [d] to kLanes others, stored coordinate by coordinate: others [d,
// kLanes]. Differences first, then squares, added coordinate after coordinate, so equal points have equal
// distances whatever their lane.
void squared_distances(const double* others, const double* point, int32_t d, double* out);

}  // namespace kvreplay::kernels

namespace kvreplay {
// The path of the kernels, chosen at the first call of any of them: the best that processor and operating
// system offer, or the one KVREPLAY_ISA names (portable, avx2, avx512, avx512bf16, amx). ConfigError where
// there is no such path or the machine lacks it.
const char* isa_path();
}  // namespace kvreplay
