#pragma once
#include "kernels/table.hpp"

// The kernels' text, once for every vector width. A translation unit defines Vector<float> and
// Vector<double> in this unnamed namespace before it includes this file:
//   Raw, Whole          a GCC vector of kLanes numbers, and of as many unsigned integers of their size
//   kRegisters          how many such vectors the machine holds
//   fma(a, b, c)        a b + c
//   load_first(p, n), store_first(p, x, n)   the first n < kLanes lanes; others read as 0, stay unwritten
//   scale(p, w)         p 2^w, only where the machine has an instruction for it
//   widen_add(x, low, high)   adds the halves of x, in double, to low and high; double: x to low
// Everything has internal linkage: no other unit may link to code made for these instructions. For the same
// reason nothing of the standard library is used.
//
// A number of row i is computed by the same operations in the same order whatever other rows a call has.

#define KVR_INLINE inline __attribute__((always_inline))

namespace kvreplay::kernels {
namespace {

template <class Real>
KVR_INLINE typename Vector<Real>::Raw load(const Real* p) {
  typename Vector<Real>::Raw x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
template <class Real>
KVR_INLINE void store(Real* p, typename Vector<Real>::Raw x) {
  __builtin_memcpy(p, &x, sizeof x);
}
template <class Real>
KVR_INLINE typename Vector<Real>::Raw all(Real x) {
  return x - typename Vector<Real>::Raw{};  // taking off 0, unlike adding it, is no operation
}
KVR_INLINE int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

// Lanes are added in a fixed tree.
KVR_INLINE double sum_of_lanes(typename Vector<double>::Raw x) {
  double lane[Vector<double>::kLanes];
  store(lane, x);
  for (int32_t half = Vector<double>::kLanes / 2; half > 0; half /= 2)
    for (int32_t i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}

// Scores.

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
  for (; m >= Rows; m -= Rows, q += Rows * ldq, out += Rows * ldo)
    score_block<Rows>(q, ldq, keys, d, width, out, ldo);
  if constexpr (Rows > 1)
    if (m > 0) score_rows<Rows / 2>(q, ldq, m, keys, d, width, out, ldo);
}

template <class Real>
void scores(const Real* q, int64_t ldq, int32_t m, const Real* keys, int32_t d, int32_t count, Real* out,
            int64_t ldo) {
  constexpr int32_t kWidth = kScoreVectors * Vector<Real>::kLanes;
  static_assert(kPanel % kWidth == 0);
  for (int32_t i = 0; i < count; i += kWidth)
    score_rows<kScoreRows<Real>>(q, ldq, m, keys + int64_t(i / kPanel) * d * kPanel + i % kPanel, d,
                                 smaller(kWidth, count - i), out + i, ldo);
}

// Products.

constexpr int32_t kProductRows = 6;
template <class Real>
constexpr int32_t kProductVectors = Vector<Real>::kRegisters >= 32 ? 4 : 2;
// Terms that are summed before they are added to the output: b's part stays in the first-level cache, and
// long sums lose less than term after term.
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
  for (; m >= Rows; m -= Rows, p.a += Rows * p.lda, p.out += Rows * p.ldo)
    product_block<Rows, Vectors, Whole>(p, last);
  if constexpr (Rows > 1)
    if (m > 0) product_rows<Rows - 1, Vectors, Whole>(p, m, last);
}

// The columns that are left when whole blocks are done: `n` of at most Vectors vectors.
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
void multiply(const Real* a, int64_t lda, int32_t m, const Real* b, int32_t k, int32_t n, Real* out,
              int64_t ldo, bool add) {
  constexpr int32_t kWidth = kProductVectors<Real> * Vector<Real>::kLanes;
  if (k <= 0 && !add) return clear(out, ldo, m, n);
  for (int32_t c = 0; c < k; c += kProductTerms)
    for (int32_t j = 0; j < n; j += kWidth)
      product_columns<kProductVectors<Real>>(
          Product<Real>{a + c, lda, b + int64_t(c) * n + j, n, smaller(kProductTerms, k - c), out + j, ldo,
                        add || c > 0},
          m, smaller(kWidth, n - j));
}

// exp. With y = w ln 2 + r, |r| <= ln 2 / 2: e^y = 2^w e^r. `kWhole` is a number so large that adding it
// rounds to an integer, which then stands in the sum's last bits; ln 2 is taken off in two parts.

template <class Real>
struct Exponential;
template <>
struct Exponential<float> {
  static constexpr float kWhole = 0x1.8p23f, kLog2e = 0x1.715476p0f;
  static constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr uint32_t kShift = 23, kOne = 127 << 23;
  static constexpr float kLowest = -87.3365402f;  // of which the exponential is a normal number
  static constexpr float kHighest = 89;
  // Minimax on [-ln 2 / 2, ln 2 / 2], 1 at 0: relative error 3.2e-9 before rounding.
  static constexpr float kCoefficients[] = {
      0x1.6a5228p-10f, 0x1.12396cp-7f, 0x1.5558aap-5f, 0x1.555492p-3f, 0x1.fffffcp-2f, 1, 1};
};
template <>
struct Exponential<double> {
  static constexpr double kWhole = 0x1.8p52, kLog2e = 0x1.71547652b82fep0;
  static constexpr double kLn2High = 0x1.62e42fefap-1, kLn2Low = 0x1.cf79abc9e3b3ap-40;
  static constexpr uint64_t kShift = 52, kOne = uint64_t(1023) << 52;
  static constexpr double kLowest = -708.39641853226408, kHighest = 710;
  // Taylor; the next term is below 5e-18.
  static constexpr double kCoefficients[] = {
      1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
      1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       1.0 / 2,      1.0,         1.0};
};

// 0 where the result would not be normal, infinity where it is too large; NaN stays NaN.
template <class Real>
KVR_INLINE typename Vector<Real>::Raw exponential(typename Vector<Real>::Raw y) {
  using V = Vector<Real>;
  using E = Exponential<Real>;
  using Raw = typename V::Raw;
  constexpr bool kScales = requires(Raw x) { V::scale(x, x); };  // an instruction for p 2^w
  const Raw x = kScales ? y : E::kHighest < y ? all(E::kHighest) : y;
  const Raw shifted = V::fma(x, all(E::kLog2e), all(E::kWhole));
  const Raw whole = shifted - E::kWhole;
  const Raw r = V::fma(whole, all(-E::kLn2Low), V::fma(whole, all(-E::kLn2High), x));
  Raw p = all(E::kCoefficients[0]);
#pragma GCC unroll 16
  for (uint32_t i = 1; i < sizeof E::kCoefficients / sizeof(Real); ++i)
    p = V::fma(p, r, all(E::kCoefficients[i]));
  if constexpr (kScales) p = V::scale(p, whole);
  else p = p * (Raw)(((typename V::Whole)shifted << E::kShift) + E::kOne);
  return x < all(E::kLowest) ? Raw{} : p;
}

// Sums of a row in double. Four float vectors are added before they are widened, which rounds twice.
template <class Real>
struct Sums {
  using Raw = typename Vector<Real>::Raw;
  Vector<double>::Raw sum[2] = {}, squares[2] = {};
  KVR_INLINE void add(const Raw* x) {
    using V = Vector<Real>;
    V::widen_add((x[0] + x[1]) + (x[2] + x[3]), sum[0], sum[1]);
    V::widen_add(V::fma(x[0], x[0], x[1] * x[1]) + V::fma(x[2], x[2], x[3] * x[3]), squares[0], squares[1]);
  }
  KVR_INLINE RowSums total() const {
    return {sum_of_lanes(sum[0] + sum[1]), sum_of_lanes(squares[0] + squares[1])};
  }
};

template <class Real>
RowSums exponentiate(Real* row, int32_t n, Real scale, Real shift) {
  using V = Vector<Real>;
  using Raw = typename V::Raw;
  constexpr int32_t kStep = 4 * V::kLanes;
  const Raw factor = all(scale), minus = all(-shift);
  Sums<Real> sums;
  int32_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    Raw x[4];
#pragma GCC unroll 4
    for (int32_t j = 0; j < 4; ++j) {
      x[j] = exponential<Real>(V::fma(load(row + i + j * V::kLanes), factor, minus));
      store(row + i + j * V::kLanes, x[j]);
    }
    sums.add(x);
  }
  if (i == n) return sums.total();
  Raw x[4] = {};
  for (int32_t j = 0; j < 4 && i < n; ++j, i += V::kLanes) {
    const int32_t left = n - i;
    if (left >= V::kLanes) {
      x[j] = exponential<Real>(V::fma(load(row + i), factor, minus));
      store(row + i, x[j]);
      continue;
    }
    V::store_first(row + i, exponential<Real>(V::fma(V::load_first(row + i, left), factor, minus)), left);
    x[j] = V::load_first(row + i, left);
  }
  sums.add(x);
  return sums.total();
}

template <class Real>
Real row_maximum(const Real* row, int32_t n) {
  using V = Vector<Real>;
  using Raw = typename V::Raw;
  const Raw lowest = all(-Real(__builtin_inf()));
  Raw top[2] = {lowest, lowest};
  typename V::Whole nan[2] = {};
  int32_t i = 0;
  for (; i + 2 * V::kLanes <= n; i += 2 * V::kLanes)
    for (int32_t j = 0; j < 2; ++j) {
      const Raw x = load(row + i + j * V::kLanes);
      top[j] = x > top[j] ? x : top[j];
      nan[j] |= (typename V::Whole)(x != x);
    }
  Real lane[V::kLanes], largest = lowest[0];
  store(lane, top[0] > top[1] ? top[0] : top[1]);
  for (int32_t j = 0; j < V::kLanes; ++j) {
    largest = lane[j] > largest ? lane[j] : largest;
    if ((nan[0] | nan[1])[j] != 0) return Real(__builtin_nan(""));
  }
  for (; i < n; ++i) {
    if (row[i] != row[i]) return row[i];
    largest = row[i] > largest ? row[i] : largest;
  }
  return largest;
}

// One load a number: on processors with slow gathers (all of AMD's, others since their microcode was mended)
// the instruction takes twice as long. The barrier keeps the compiler from assembling vectors of its own.
template <class Real>
KVR_INLINE void copy_gathered(const Real* from, const int32_t* index, int32_t n, Real* out) {
  for (int32_t i = 0; i < n; ++i) {
    out[i] = from[index[i]];
    __asm__ volatile("" ::: "memory");
  }
}

// Terms x(i, n): a vector of numbers i.. of which the first n count.
template <class Real, class F>
KVR_INLINE double sum_terms(int32_t n, F term) {
  using V = Vector<Real>;
  constexpr int32_t kStep = 2 * V::kLanes;
  typename Vector<double>::Raw sum[2][2] = {};
  int32_t i = 0;
  for (; i + kStep <= n; i += kStep)
    for (int32_t j = 0; j < 2; ++j) V::widen_add(term(i + j * V::kLanes, V::kLanes), sum[j][0], sum[j][1]);
  for (; i < n; i += V::kLanes) V::widen_add(term(i, smaller(V::kLanes, n - i)), sum[0][0], sum[0][1]);
  return sum_of_lanes((sum[0][0] + sum[0][1]) + (sum[1][0] + sum[1][1]));
}
template <class Real>
KVR_INLINE typename Vector<Real>::Raw load_up_to(const Real* p, int32_t n) {
  return n == Vector<Real>::kLanes ? load(p) : Vector<Real>::load_first(p, n);
}

template <class Real>
KVR_INLINE double sum_one_by_one(const Real* x, int32_t n) {
  double sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += double(x[i]);
  return sum;
}

// The odd rest is copied first: a vector load waits for numbers that were just stored one by one.
template <class Real>
double gather(const Real* from, const int32_t* index, int32_t n, Real* out) {
  using V = Vector<Real>;
  constexpr int32_t kStep = 4 * V::kLanes;
  const int32_t whole = n - n % kStep;
  copy_gathered(from, index + whole, n - whole, out + whole);
  if (whole == 0) return sum_one_by_one(out, n);
  typename Vector<double>::Raw sum[2][2] = {};
  for (int32_t i = 0; i < whole; i += kStep) {
    copy_gathered(from, index + i, kStep, out + i);
    for (int32_t j = 0; j < 4; ++j) V::widen_add(load(out + i + j * V::kLanes), sum[j % 2][0], sum[j % 2][1]);
  }
  for (int32_t i = whole; i < n; i += V::kLanes)
    V::widen_add(load_up_to(out + i, smaller(V::kLanes, n - i)), sum[0][0], sum[0][1]);
  return sum_of_lanes((sum[0][0] + sum[0][1]) + (sum[1][0] + sum[1][1]));
}

template <class Real>
double sum(const Real* x, int32_t n) {
  return sum_terms<Real>(n, [&](int32_t i, int32_t count) { return load_up_to(x + i, count); });
}

template <class Real>
double weigh(const Real* x, const Real* factor, int32_t n, Real* out) {
  return sum_terms<Real>(n, [&](int32_t i, int32_t count) {
    const typename Vector<Real>::Raw y = load_up_to(x + i, count) * load_up_to(factor + i, count);
    if (count == Vector<Real>::kLanes) store(out + i, y);
    else Vector<Real>::store_first(out + i, y, count);
    return y;
  });
}

// The first n numbers, in double; zeros behind.
template <class Real>
KVR_INLINE Vector<double>::Raw widened(const Real* p, int32_t n) {
  double lane[Vector<double>::kLanes] = {};
  if (n >= Vector<double>::kLanes)
    for (int32_t l = 0; l < Vector<double>::kLanes; ++l) lane[l] = double(p[l]);
  else
    for (int32_t l = 0; l < n; ++l) lane[l] = double(p[l]);
  return load(lane);
}

template <class Real>
Distance distance(const Real* mine, const Real* exact, int32_t n) {
  using V = Vector<Real>;
  using Wide = Vector<double>;
  typename Wide::Raw error2[2] = {}, exact2[2] = {};
  for (int32_t i = 0; i < n; i += V::kLanes) {
    const int32_t count = smaller(V::kLanes, n - i);
    typename Wide::Raw z[2] = {}, o[2] = {};
    V::widen_add(load_up_to(mine + i, count), z[0], z[1]);
    V::widen_add(load_up_to(exact + i, count), o[0], o[1]);
    for (int32_t j = 0; j < 2; ++j) {
      const typename Wide::Raw e = z[j] - o[j];
      error2[j] = Wide::fma(e, e, error2[j]), exact2[j] = Wide::fma(o[j], o[j], exact2[j]);
    }
  }
  return {sum_of_lanes(error2[0] + error2[1]), sum_of_lanes(exact2[0] + exact2[1])};
}

template <class Real>
Comparison compare(const Real* mine, const Real* exact, int32_t n, double tau) {
  using V = Vector<double>;
  using Raw = V::Raw;
  Raw mine2 = {}, inner = {}, positive2 = {}, numerator2 = {};
  const Raw clamp = all(Comparison::kClamp);
  for (int32_t i = 0; i < n; i += V::kLanes) {
    const Raw z = widened(mine + i, n - i), o = widened(exact + i, n - i);
    Raw p = o > clamp ? o : clamp;
    if (n - i < V::kLanes)
      for (int32_t l = n - i; l < V::kLanes; ++l) p[l] = 0;
    const Raw numerator = z * tau - o;
    mine2 = V::fma(z, z, mine2), inner = V::fma(z, o, inner), positive2 = V::fma(p, p, positive2);
    numerator2 = V::fma(numerator, numerator, numerator2);
  }
  return {sum_of_lanes(mine2), sum_of_lanes(inner), sum_of_lanes(positive2), sum_of_lanes(numerator2)};
}

// Elements x(i) of up to a vector each; f(i, count) handles `count` of them from i on.
template <class Real, class F>
KVR_INLINE void by_vectors(int64_t n, F f) {
  constexpr int64_t kStep = Vector<Real>::kLanes;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) f(i, int32_t(kStep));
  if (i < n) f(i, int32_t(n - i));
}
template <class Real>
KVR_INLINE void store_up_to(Real* p, typename Vector<Real>::Raw x, int32_t n) {
  if (n == Vector<Real>::kLanes) store(p, x);
  else Vector<Real>::store_first(p, x, n);
}

template <class Real>
void add(const Real* a, const Real* b, Real weight, int64_t n, Real* out) {
  by_vectors<Real>(n, [&](int64_t i, int32_t count) {
    store_up_to(out + i, load_up_to(a + i, count) + load_up_to(b + i, count) * weight, count);
  });
}

template <class Real>
void finish(const Real* a, const Real* b, Real factor, int64_t n, Real* out) {
  by_vectors<Real>(n, [&](int64_t i, int32_t count) {
    store_up_to(out + i, (load_up_to(a + i, count) + load_up_to(b + i, count)) * factor, count);
  });
}

// Products are rounded before they are added, as in the policies' own text.
template <class Real>
void accumulate(const Real* e, double weight, double carry, int32_t n, double* score) {
  if (carry == 0)
    for (int32_t i = 0; i < n; ++i) score[i] = double(e[i]) * weight;
  else if (carry == 1)
    for (int32_t i = 0; i < n; ++i) score[i] += double(e[i]) * weight;
  else
    for (int32_t i = 0; i < n; ++i) score[i] = carry * score[i] + double(e[i]) * weight;
}

// Of rows that share the lowest score.
inline Lowest newest_of(double best, const double* score, const double* guard, const int32_t* token,
                        int32_t n) {
  int32_t newest = -1;
  for (int32_t i = 0; i < n; ++i)
    newest = score[i] + guard[i] == best && token[i] > newest ? token[i] : newest;
  return {best, newest};
}

inline Lowest lowest(const double* score, const double* guard, const int32_t* token, int32_t n) {
  using V = Vector<double>;
  V::Raw least = all(__builtin_inf());
  V::Whole where = {}, again = {};  // of each lane: the row that has its least, whether another has it too
  int32_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) {
    const V::Raw x = load(score + i) + load(guard + i);
    again = x < least ? V::Whole{} : x == least ? V::Whole{} + 1 : again;
    where = x < least ? V::Whole{} + uint64_t(i) : where;
    least = x < least ? x : least;
  }
  Lowest best{__builtin_inf(), -1};
  bool shared = false;
  const auto see = [&](double x, int32_t row, bool twice) {
    if (x == best.score) shared = true;
    if (!(x < best.score)) return;
    best = {x, row}, shared = twice;
  };
  for (int32_t l = 0; l < V::kLanes; ++l) see(least[l], int32_t(where[l]) + l, again[l] != 0);
  for (; i < n; ++i) see(score[i] + guard[i], i, false);
  if (best.token < 0) return best;
  if (shared) return newest_of(best.score, score, guard, token, n);
  return {best.score, token[best.token]};
}

// ln x = e ln 2 + ln m, m in [sqrt 1/2, sqrt 2); with s = (m - 1) / (m + 1), ln m = 2 (s + s^3 / 3 + ..).
// x: normal.
KVR_INLINE typename Vector<double>::Raw logarithm(typename Vector<double>::Raw x) {
  using V = Vector<double>;
  using Raw = V::Raw;
  constexpr uint64_t kMantissa = (uint64_t(1) << 52) - 1, kTwo52 = uint64_t(0x433) << 52;
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcd;
  // The exponent is read off after m's least value is taken off, so that m >= sqrt 1/2.
  const V::Whole bits = (V::Whole)x - kRootHalf;
  const V::Whole exponent = ((bits >> 52) + 1024) & 0xfff;
  const Raw e = (Raw)(exponent | kTwo52) - (0x1p52 + 1024);
  const Raw m = (Raw)((bits & kMantissa) + kRootHalf);
  const Raw s = (m - 1.0) / (m + 1.0), z = s * s;
  Raw p = all(2.0 / 23);
#pragma GCC unroll 16
  for (int32_t k = 21; k >= 3; k -= 2) p = V::fma(p, z, all(2.0 / k));
  const Raw tail = V::fma(p * z, s, e * Exponential<double>::kLn2Low);
  return V::fma(e, all(Exponential<double>::kLn2High), V::fma(s, all(2.0), tail));
}

// The logarithm of 0 or of a denormal double is some number, by which nothing is multiplied.
template <class Real>
double sum_x_log_x(const Real* row, int32_t n) {
  using V = Vector<double>;
  V::Raw sum[2] = {};
  for (int32_t i = 0, j = 0; i < n; i += V::kLanes, j = 1 - j) {
    double lane[V::kLanes] = {};
    if (i + V::kLanes <= n)
      for (int32_t l = 0; l < V::kLanes; ++l) lane[l] = double(row[i + l]);
    else
      for (int32_t l = 0; l < n - i; ++l) lane[l] = double(row[i + l]);
    const V::Raw x = load(lane);
    sum[j] += x * logarithm(x);
  }
  return sum_of_lanes(sum[0] + sum[1]);
}

// Products are rounded before they are added, as everywhere: all instruction sets give the same bits.
inline void squared_distances(const double* others, const double* point, int32_t d, double* out) {
  using V = Vector<double>;
  constexpr int32_t kVectors = kernels::kLanes / V::kLanes;
  V::Raw sum[kVectors] = {};
  for (int32_t c = 0; c < d; ++c)
#pragma GCC unroll 8
    for (int32_t j = 0; j < kVectors; ++j) {
      const V::Raw difference = load(others + int64_t(c) * kernels::kLanes + j * V::kLanes) - point[c];
      sum[j] += difference * difference;
    }
  for (int32_t j = 0; j < kVectors; ++j) store(out + j * V::kLanes, sum[j]);
}

template <class Real>
constexpr Functions<Real> functions() {
  return {scores<Real>, multiply<Real>, exponentiate<Real>, row_maximum<Real>, gather<Real>,
          sum<Real>,    weigh<Real>,    accumulate<Real>,   distance<Real>,    compare<Real>,
          add<Real>,    finish<Real>,   sum_x_log_x<Real>};
}

constexpr Table table_of_this_width(const char* name) {
  return {name, functions<float>(), functions<double>(), squared_distances, lowest, nullptr};
}

}  // namespace
}  // namespace kvreplay::kernels
