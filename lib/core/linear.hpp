#pragma once
#include "base/matrices.hpp"
#include "core/vectors.hpp"
#include "core/wide.hpp"

// Small dense linear algebra in double, by a team. Matrices are row-major.

namespace kvreplay {

template <class A, class B>
double squared_distance(std::span<A> a, std::span<B> b) {
  double s = 0;
  const A* x = a.data();
  const B* y = b.data();
  const int32_t n = int32_t(a.size());
  KVR_SIMD_SUM(s) for (int32_t c = 0; c < n; ++c) {
    const double difference = double(x[c]) - double(y[c]);
    s += difference * difference;
  }
  return s;
}
template <class A>
double dot(const A* a, const double* b, int32_t n) {
  return wide_dot(std::span<const A>(a, size_t(n)), std::span<const double>(b, size_t(n)));
}

// Cuts a span of doubles into arrays, one after the other.
struct Carver {
  double* next;
  std::span<double> operator()(int64_t n) {
    double* const begin = next;
    next += n;
    return {begin, size_t(n)};
  }
  // n numbers of type T in the room of n doubles.
  template <class T>
  std::span<T> numbers(int64_t n) {
    static_assert(sizeof(T) <= sizeof(double) && std::is_arithmetic_v<T>);
    return {reinterpret_cast<T*>((*this)(n).data()), size_t(n)};
  }
};

// out[c] = sum_i weight(i) row(i)[c], in the order of the rows. `out` is none of the rows.
template <class W, class R>
void weighted_sum(int32_t n, W weight, R row, std::span<double> out) {
  double* const sum = out.data();
  const int32_t width = int32_t(out.size());
  wide([&] {
    for (int32_t c = 0; c < width; ++c) sum[c] = 0;
    for (int32_t i = 0; i < n; ++i) {
      const double w = weight(i);
      const auto* const x = row(i).data();
      KVR_SIMD for (int32_t c = 0; c < width; ++c) sum[c] += w * double(x[c]);
    }
  });
}

// a += x x^T on the lower triangle of a [n, n].
inline void add_outer(const Team auto& team, std::span<double> a, std::span<const double> x) {
  const int32_t n = int32_t(x.size());
  wide([&] {
    team.each(n, [&](int32_t i) {
      double* const row = a.data() + int64_t(i) * n;
      const double* const y = x.data();
      const double scale = x[size_t(i)];
      if (scale == 0) return;
      KVR_SIMD for (int32_t j = 0; j <= i; ++j) row[j] += scale * y[j];
    });
  });
}
// Fills the upper triangle of a symmetric a [n, n] from the lower one, and adds `ridge` times the mean diagonal to the
// diagonal.
inline void complete(const Team auto& team, std::span<double> a, int32_t n, double ridge) {
  const double shift = n == 0 ? 0 : ridge / n * team.sum(n, [&](int32_t i) { return a[size_t(i) * size_t(n + 1)]; });
  team.each(n, [&](int32_t i) {
    for (int32_t j = 0; j < i; ++j) a[size_t(j) * size_t(n) + size_t(i)] = a[size_t(i) * size_t(n) + size_t(j)];
    a[size_t(i) * size_t(n + 1)] += shift;
  });
}

// a = L L^T in place, L in the lower triangle. Returns false if a is not positive definite.
inline bool cholesky(const Team auto& team, std::span<double> a, int32_t n) {
  const auto row = [&](int32_t i) { return a.data() + int64_t(i) * n; };
  for (int32_t j = 0; j < n; ++j) {
    const double pivot = row(j)[j] - dot(row(j), row(j), j);
    if (!(pivot > 0)) return false;
    const double root = std::sqrt(pivot);
    row(j)[j] = root;
    team.each(n - j - 1, [&](int32_t k) {
      double* const below = row(j + 1 + k);
      below[j] = (below[j] - dot(below, row(j), j)) / root;
    });
  }
  return true;
}
// b [n, columns] becomes (L L^T)^-1 b.
inline void cholesky_solve(const Team auto& team, std::span<const double> l, int32_t n, std::span<double> b,
                           int32_t columns) {
  team.each(columns, [&](int32_t c) {
    const auto x = [&](int32_t i) -> double& { return b[size_t(i) * size_t(columns) + size_t(c)]; };
    const auto at = [&](int32_t i, int32_t j) { return l[size_t(i) * size_t(n) + size_t(j)]; };
    for (int32_t i = 0; i < n; ++i) {
      double s = x(i);
      for (int32_t j = 0; j < i; ++j) s -= at(i, j) * x(j);
      x(i) = s / at(i, i);
    }
    for (int32_t i = n - 1; i >= 0; --i) {
      double s = x(i);
      for (int32_t j = i + 1; j < n; ++j) s -= at(j, i) * x(j);
      x(i) = s / at(i, i);
    }
  });
}

// inverse = a^-1 for a symmetric a [n, n]. Only the lower triangle is read; it is replaced by the Cholesky factor.
// Returns false if a is not positive definite.
inline bool invert(const Team auto& team, std::span<double> a, int32_t n, std::span<double> inverse) {
  if (!cholesky(team, a, n)) return false;
  team.each(n * n, [&](int32_t i) { inverse[size_t(i)] = i % (n + 1) == 0 ? 1 : 0; });
  cholesky_solve(team, a, n, inverse, n);
  return true;
}
// x^T a x for a symmetric a; only the lower triangle is read.
inline double quadratic_form(const Team auto& team, std::span<const double> a, std::span<const double> x) {
  const int32_t n = int32_t(x.size());
  return team.sum(n, [&](int32_t i) {
    const double* const row = a.data() + int64_t(i) * n;
    return x[size_t(i)] * (2 * dot(row, x.data(), i) + row[i] * x[size_t(i)]);
  });
}

// First eigenvector x of a symmetric a [n, n] without negative eigenvalues; its largest number is positive. Computed by
// squaring: in a, a^2, a^4, ..., scaled to trace 1, soon only x remains. Zero if a is zero. a becomes the last power.
// power: [n, n] scratch.
inline void first_eigenvector(const Team auto& team, std::span<double> a, int32_t n, std::span<double> power,
                              std::span<double> x) {
  constexpr int32_t kMostSquarings = 60;
  constexpr double kOthers = 1e-13;  // share of the trace that the other eigenvectors may have
  const auto row = [&](int32_t i) { return a.subspan(size_t(i) * size_t(n), size_t(n)); };
  const auto diagonal = [&](int32_t i) { return a[size_t(i) * size_t(n + 1)]; };
  for (int32_t squaring = 0; squaring < kMostSquarings; ++squaring) {
    const double trace = team.sum(n, diagonal);
    if (!(trace > 0)) break;
    team.each(n * n, [&](int32_t i) { a[size_t(i)] /= trace; });
    if (team.sum(n * n, [&](int32_t i) { return a[size_t(i)] * a[size_t(i)]; }) >= 1 - kOthers) break;
    for (int32_t i = 0; i < n; ++i)
      weighted_sum(
          n, [&](int32_t j) { return row(i)[size_t(j)]; }, row, power.subspan(size_t(i) * size_t(n), size_t(n)));
    team.each(n * n, [&](int32_t i) { a[size_t(i)] = power[size_t(i)]; });
  }
  const std::span<double> best = row(team.largest(n, diagonal).index);
  const double length = norm(best);
  team.each(n, [&](int32_t i) { x[size_t(i)] = length > 0 ? best[size_t(i)] / length : 0; });
}

// The `count` eigenvectors of a symmetric a [n, n] with the largest eigenvalues, largest first, one per row of
// `vectors`. Their signs are open. Only the lower triangle of a is read.
inline void leading_eigenvectors(std::span<const double> a, int32_t n, int32_t count, std::span<double> vectors) {
  const Spectrum ascending = spectrum_of(a, n);
  for (int32_t j = 0; j < count; ++j)
    for (int32_t c = 0; c < n; ++c)
      vectors[size_t(j) * size_t(n) + size_t(c)] = ascending.vectors[size_t(n - 1 - j) * size_t(n) + size_t(c)];
}

// Largest eigenvalue of a symmetric a [n, n] without negative numbers, by power iteration. The first eigenvector has no
// negative number either, so a constant start is never orthogonal to it. scratch: 2 n doubles.
inline double largest_eigenvalue(const Team auto& team, std::span<const double> a, int32_t n,
                                 std::span<double> scratch) {
  constexpr int32_t kMostRounds = 2000;
  constexpr double kTolerance = 1e-14;
  const auto x = scratch.subspan(0, size_t(n)), y = scratch.subspan(size_t(n), size_t(n));
  team.each(n, [&](int32_t i) { x[size_t(i)] = 1 / std::sqrt(double(n)); });
  double value = 0;
  for (int32_t round = 0; round < kMostRounds; ++round) {
    team.each(n, [&](int32_t i) { y[size_t(i)] = dot(a.data() + int64_t(i) * n, x.data(), n); });
    const double before = value;
    value = team.sum(n, [&](int32_t i) { return x[size_t(i)] * y[size_t(i)]; });
    const double length = std::sqrt(team.sum(n, [&](int32_t i) { return y[size_t(i)] * y[size_t(i)]; }));
    if (!(length > 0)) return 0;
    team.each(n, [&](int32_t i) { x[size_t(i)] = y[size_t(i)] / length; });
    if (std::fabs(value - before) <= kTolerance * value) break;
  }
  return value;
}

// Gram-Schmidt, twice for rounding: columns first..first+count-1 of a [n, width] become orthonormal.
inline void orthonormalise(const Team auto& team, std::span<double> a, int32_t n, int32_t width, int32_t first,
                           int32_t count) {
  const auto at = [&](int32_t i, int32_t j) -> double& { return a[size_t(i) * size_t(width) + size_t(first + j)]; };
  for (int32_t j = 0; j < count; ++j) {
    for (int32_t other = 0; other < 2 * j; ++other) {
      const int32_t o = other % j;
      const double overlap = team.sum(n, [&](int32_t i) { return at(i, j) * at(i, o); });
      team.each(n, [&](int32_t i) { at(i, j) -= overlap * at(i, o); });
    }
    const double length = std::sqrt(team.sum(n, [&](int32_t i) { return at(i, j) * at(i, j); }));
    team.each(n, [&](int32_t i) { at(i, j) /= length; });
  }
}

// Ridge least squares; add() takes the rows x and their targets y one by one.
struct LeastSquares {
  int32_t n, columns;
  std::span<double> gram, factor, right, solution;  // [n, n], [n, n], [n, columns], [n, columns]

  void clear(const Team auto& team) const {
    team.each(n * n, [&](int32_t i) { gram[size_t(i)] = 0; });
    team.each(n * columns, [&](int32_t i) { right[size_t(i)] = 0; });
  }
  void add(const Team auto& team, std::span<const double> x, std::span<const double> y) const {
    add_outer(team, gram, x);
    team.each(n, [&](int32_t j) {
      for (int32_t c = 0; c < columns; ++c) right[size_t(j * columns + c)] += x[size_t(j)] * y[size_t(c)];
    });
  }
  // Afterwards gram holds the whole matrix, the ridge included. Returns false if there is no unique solution.
  bool solve(const Team auto& team, double ridge) const {
    complete(team, gram, n, ridge);
    team.each(n * n, [&](int32_t i) { factor[size_t(i)] = gram[size_t(i)]; });
    team.each(n * columns, [&](int32_t i) { solution[size_t(i)] = right[size_t(i)]; });
    if (!cholesky(team, factor, n)) return false;
    cholesky_solve(team, factor, n, solution, columns);
    return true;
  }
};

// Randomly pivoted Cholesky of a positive semidefinite entry(i, j), i, j < n. Pivots are drawn in proportion to the
// residual of the diagonal: pivot j with uniform(j), by the running sum. residual [n], factor [n, most], pivots [most].
// Returns the number of pivots, fewer than `most` once the residual is zero.
template <class E, class U>
int32_t pivoted_cholesky(const Team auto& team, int32_t n, int32_t most, E entry, U uniform, std::span<double> residual,
                         std::span<double> factor, std::span<double> pivots) {
  const auto row = [&](int32_t i) { return factor.data() + int64_t(i) * most; };
  const auto left = [&](int32_t i) { return residual[size_t(i)]; };
  team.each(n, [&](int32_t i) { residual[size_t(i)] = entry(i, i); });
  for (int32_t j = 0; j < most; ++j) {
    const double total = team.sum(n, left);
    if (!(total > 0)) return j;
    double running = 0;
    const double u = uniform(j) * total;
    int32_t s = 0;
    for (int32_t i = 0; i < n && !(running > u); running += left(i++))
      if (left(i) > 0) s = i;
    const double root = std::sqrt(left(s));
    pivots[size_t(j)] = s;
    team.each(n, [&](int32_t i) {
      const double x = (entry(i, s) - dot(row(i), row(s), j)) / root, rest = left(i) - x * x;
      row(i)[j] = x;
      residual[size_t(i)] = i == s || rest < 0 ? 0 : rest;
    });
  }
  return most;
}

}  // namespace kvreplay
