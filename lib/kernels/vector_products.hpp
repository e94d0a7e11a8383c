#pragma once
#include "kernels/table.hpp"
#include "kernels/vectors.hpp"

// Matrix products; see vector_kernels.hpp.

namespace kvreplay::kernels {
namespace {

constexpr int32_t kScoreVectors = 3;
template <class Real>
constexpr int32_t kScoreRows = Vector<Real>::kRegisters >= 32 ? 8 : 4;

template <int32_t Rows, class Real>
KVR_INLINE void score_block(const Real* q, int64_t ldq, const Real* keys, int32_t d, int32_t width, Real* out,
                            int64_t ldo) {
  using V = Vector<Real>;
  typename V::Raw sum[Rows][kScoreVectors] = {};
  for (int32_t c = 0; c < d; ++c) {
    typename V::Raw b[kScoreVectors];
#pragma GCC unroll 8
    for (int32_t j = 0; j < kScoreVectors; ++j) b[j] = load(keys + int64_t(c) * kPanel + j * V::kLanes);
#pragma GCC unroll 8
    for (int32_t i = 0; i < Rows; ++i) {
      const typename V::Raw a = all(q[i * ldq + c]);
#pragma GCC unroll 8
      for (int32_t j = 0; j < kScoreVectors; ++j) sum[i][j] = V::fma(a, b[j], sum[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int32_t i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int32_t j = 0; j < kScoreVectors; ++j) {
      const int32_t left = width - j * V::kLanes;
      if (left >= V::kLanes) store(out + i * ldo + j * V::kLanes, sum[i][j]);
      else if (left > 0) V::store_first(out + i * ldo + j * V::kLanes, sum[i][j], left);
    }
}

template <int32_t Rows, class Real>
void score_rows(const Real* q, int64_t ldq, int32_t m, const Real* keys, int32_t d, int32_t width, Real* out,
                int64_t ldo) {
  for (; m >= Rows; m -= Rows, q += Rows * ldq, out += Rows * ldo) score_block<Rows>(q, ldq, keys, d, width, out, ldo);
  if constexpr (Rows > 1)
    if (m > 0) score_rows<Rows / 2>(q, ldq, m, keys, d, width, out, ldo);
}

template <class Real>
void scores(const Real* q, int64_t ldq, int32_t m, const Real* keys, int32_t d, int32_t count, Real* out, int64_t ldo) {
  constexpr int32_t kWidth = kScoreVectors * Vector<Real>::kLanes;
  static_assert(kPanel % kWidth == 0);
  for (int32_t i = 0; i < count; i += kWidth)
    score_rows<kScoreRows<Real>>(q, ldq, m, keys + int64_t(i / kPanel) * d * kPanel + i % kPanel, d,
                                 smaller(kWidth, count - i), out + i, ldo);
}

constexpr int32_t kProductRows = 6;
template <class Real>
constexpr int32_t kProductVectors = Vector<Real>::kRegisters >= 32 ? 4 : 2;
// Terms that are summed before they are added to the output. b's part then stays in the first-level cache, and long
// sums have a smaller rounding error than adding term after term.
constexpr int32_t kProductTerms = 96;

template <class Real>
struct Product {
  const Real* a;
  int64_t lda;
  const Real* b;
  int64_t ldb;
  int32_t terms;
  Real* out;
  int64_t ldo;
  bool add;
};

template <int32_t Rows, int32_t Vectors, bool Whole, class Real>
KVR_INLINE void product_block(const Product<Real>& p, int32_t last) {
  using V = Vector<Real>;
  const Real* b = p.b;
  typename V::Raw sum[Rows][Vectors] = {};
  for (int32_t c = 0; c < p.terms; ++c, b += p.ldb) {
    typename V::Raw x[Vectors];
#pragma GCC unroll 8
    for (int32_t j = 0; j < Vectors; ++j)
      x[j] = Whole || j + 1 < Vectors ? load(b + j * V::kLanes) : V::load_first(b + j * V::kLanes, last);
#pragma GCC unroll 8
    for (int32_t i = 0; i < Rows; ++i) {
      const typename V::Raw a = all(p.a[i * p.lda + c]);
#pragma GCC unroll 8
      for (int32_t j = 0; j < Vectors; ++j) sum[i][j] = V::fma(a, x[j], sum[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int32_t i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int32_t j = 0; j < Vectors; ++j) {
      Real* to = p.out + i * p.ldo + j * V::kLanes;
      if (Whole || j + 1 < Vectors) store(to, p.add ? load(to) + sum[i][j] : sum[i][j]);
      else V::store_first(to, p.add ? V::load_first(to, last) + sum[i][j] : sum[i][j], last);
    }
}

template <int32_t Rows, int32_t Vectors, bool Whole, class Real>
void product_rows(Product<Real> p, int32_t m, int32_t last) {
  for (; m >= Rows; m -= Rows, p.a += Rows * p.lda, p.out += Rows * p.ldo) product_block<Rows, Vectors, Whole>(p, last);
  if constexpr (Rows > 1)
    if (m > 0) product_rows<Rows - 1, Vectors, Whole>(p, m, last);
}

// The columns that remain after the whole blocks: `n` of at most Vectors vectors.
template <int32_t Vectors, class Real>
void product_columns(const Product<Real>& p, int32_t m, int32_t n) {
  constexpr int32_t kBefore = (Vectors - 1) * Vector<Real>::kLanes;
  const int32_t last = n - kBefore;
  if (last == Vector<Real>::kLanes) return product_rows<kProductRows, Vectors, true>(p, m, last);
  if (last > 0) return product_rows<kProductRows, Vectors, false>(p, m, last);
  if constexpr (Vectors > 1) product_columns<Vectors - 1>(p, m, n);
}

template <class Real>
void clear(Real* out, int64_t ldo, int32_t m, int32_t n) {
  for (int32_t i = 0; i < m; ++i)
    for (int32_t j = 0; j < n; ++j) out[i * ldo + j] = 0;
}

template <class Real>
void multiply(const Real* a, int64_t lda, int32_t m, const Real* b, int32_t k, int32_t n, Real* out, int64_t ldo,
              bool add) {
  constexpr int32_t kWidth = kProductVectors<Real> * Vector<Real>::kLanes;
  if (m <= 0) return;  // `out` may be null
  if (k <= 0 && !add) return clear(out, ldo, m, n);
  for (int32_t c = 0; c < k; c += kProductTerms)
    for (int32_t j = 0; j < n; j += kWidth)
      product_columns<kProductVectors<Real>>(Product<Real>{a + c, lda, b + int64_t(c) * n + j, n,
                                                           smaller(kProductTerms, k - c), out + j, ldo, add || c > 0},
                                             m, smaller(kWidth, n - j));
}

// exp. With y = w ln 2 + r, |r| <= ln 2 / 2: e^y = 2^w e^r. Adding `kWhole`, a very large number, rounds to an integer,
// which is then in the last bits of the sum. ln 2 is subtracted in two parts.

}  // namespace
}  // namespace kvreplay::kernels
