#pragma once
#include "kernels/table.hpp"
#include "kernels/vectors.hpp"

// Sums, gathers, comparisons and searches in rows of numbers; see vector_kernels.hpp.

namespace kvreplay::kernels {
namespace {

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

// One load per number: on processors with slow gathers (all of AMD's, and others since a microcode fix) the gather
// instruction takes twice as long. The barrier stops the compiler from assembling vectors itself.
template <class Real>
KVR_INLINE void copy_gathered(const Real* from, const int32_t* index, int32_t n, Real* out) {
  for (int32_t i = 0; i < n; ++i) {
    out[i] = from[index[i]];
    __asm__ volatile("" ::: "memory");
  }
}

template <class Real>
KVR_INLINE double sum_one_by_one(const Real* x, int32_t n) {
  double sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += double(x[i]);
  return sum;
}

// The remainder is copied first, because a vector load waits for numbers that were just stored one by one.
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

// Loads up to kLanes numbers of 16 bits as the upper halves of floats; zeros after them.
KVR_INLINE Vector<float>::Raw load_bf16(const uint16_t* p, int32_t count) {
  using V = Vector<float>;
  typedef uint16_t Half __attribute__((vector_size(2 * V::kLanes)));
  Half half = {};
  if (count == V::kLanes) __builtin_memcpy(&half, p, sizeof half);
  else __builtin_memcpy(&half, p, size_t(2 * count));
  return (V::Raw)(__builtin_convertvector(half, V::Whole) << 16);
}

// Handles kCount directions at a time, so that the difference is read once for all of them.
template <int32_t kCount>
KVR_INLINE void project_some(const float* mine, const float* exact, const uint16_t* directions, int32_t n, float* out) {
  using V = Vector<float>;
  V::Raw sum[kCount] = {};
  for (int32_t c = 0; c < n; c += V::kLanes) {
    const int32_t count = smaller(V::kLanes, n - c);
    const V::Raw off = load_up_to(mine + c, count) - load_up_to(exact + c, count);
    for (int32_t i = 0; i < kCount; ++i)
      sum[i] = V::fma(load_bf16(directions + int64_t(i) * n + c, count), off, sum[i]);
  }
  for (int32_t i = 0; i < kCount; ++i) {
    float lane[V::kLanes], all = 0;
    store(lane, sum[i]);
    for (const float x : lane) all += x;
    out[i] = all;
  }
}
inline void project(const float* mine, const float* exact, const uint16_t* directions, int32_t count, int32_t n,
                    float* out) {
  int32_t i = 0;
  for (; i + 4 <= count; i += 4) project_some<4>(mine, exact, directions + int64_t(i) * n, n, out + i);
  for (; i < count; ++i) project_some<1>(mine, exact, directions + int64_t(i) * n, n, out + i);
}
inline void project(const double* mine, const double* exact, const uint16_t* directions, int32_t count, int32_t n,
                    float* out) {
  for (int32_t i = 0; i < count; ++i) {
    double sum = 0;
    for (int32_t c = 0; c < n; ++c) {
      const uint32_t bits = uint32_t(directions[int64_t(i) * n + c]) << 16;
      sum += double(__builtin_bit_cast(float, bits)) * (mine[c] - exact[c]);
    }
    out[i] = float(sum);
  }
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

// Products are rounded before they are added, as in the policies' code.
template <class Real>
void accumulate(const Real* e, double weight, double carry, int32_t n, double* score) {
  if (carry == 0)
    for (int32_t i = 0; i < n; ++i) score[i] = double(e[i]) * weight;
  else if (carry == 1)
    for (int32_t i = 0; i < n; ++i) score[i] += double(e[i]) * weight;
  else
    for (int32_t i = 0; i < n; ++i) score[i] = carry * score[i] + double(e[i]) * weight;
}

// The newest of the rows that share the lowest score.
inline Lowest newest_of(double best, const double* score, const double* guard, const int32_t* token, int32_t n) {
  int32_t newest = -1;
  for (int32_t i = 0; i < n; ++i) newest = score[i] + guard[i] == best && token[i] > newest ? token[i] : newest;
  return {best, newest};
}

inline Lowest lowest(const double* score, const double* guard, const int32_t* token, int32_t n) {
  using V = Vector<double>;
  V::Raw least = all(__builtin_inf());
  V::Whole where = {}, again = {};  // per lane: the row with its least number, and whether another row has the same one
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

// Products are rounded before they are added, as everywhere, so all instruction sets give the same bits.
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

}  // namespace
}  // namespace kvreplay::kernels
