#pragma once
#include "core/policy.hpp"
#include "core/quantise.hpp"

// Three changes to the scores of H2O, from the package keys_values (h2o.py, qh2o.py) and from Q-Hitter, MLSys 2024.

namespace kvreplay::h2o_scores {

// `score_norm: age`: the number of rows that a sum is divided by at a cut, once `seen` tokens have been seen. A token
// that came after the prompt counts from its own row on. The prompt counts as one row, because its sums stay as they
// are.
inline int32_t age(int32_t token, int32_t seen, int32_t prompt) {
  const int32_t first = token > prompt - 1 ? token : prompt - 1;
  return seen > first ? seen - first : 1;
}

// Norm of a value over all kv heads: value(block) of one of them.
double norm_over(int32_t blocks, auto value) {
  double square = 0;
  for (int32_t b = 0; b < blocks; ++b) square += wide_dot(value(b), value(b));
  return std::sqrt(square);
}
double value_norm(const Cache auto& cache, int32_t row) {
  return norm_over(cache.shape().blocks, [&](int32_t b) { return cache.value(row, b); });
}

// `weight: vnorm`: rows that give m(row) to the rows of the cache add `rows` * m ||v|| / sum of m ||v||. sum: over all
// tokens that these rows attend to. Calls add(row, number).
void weigh_by_values(const Team auto& team, const Cache auto& cache, double rows, double sum, auto m, auto add) {
  if (!(sum > 0)) return;
  team.each(cache.size(), [&](int32_t i) { add(i, rows * m(i) * value_norm(cache, i) / sum); });
}
// That sum over the rows of the cache.
double sum_by_values(const Team auto& team, const Cache auto& cache, auto m) {
  return team.sum(cache.size(), [&](int32_t i) { return m(i) * value_norm(cache, i); });
}
// That sum over a prompt, of which the cache may hold a part.
template <class Real>
double sum_by_values(const Team auto& team, const Prompt<Real>& prompt) {
  const auto norm_of = [&](int32_t i) {
    return norm_over(prompt.shape().blocks, [&](int32_t b) { return prompt.block(b).value(i); });
  };
  return team.sum(prompt.size(), [&](int32_t i) { return prompt.column_sum(i) * norm_of(i); });
}

// `qhitter`: E = ||k - k^|| + ||v - v^||, where k^ and v^ are read back from the row format int4.
struct Int4Errors {
  std::span<double> of_token;  // [tokens]; 0: not computed yet

  template <class Real>
  static double square_error(std::span<const Real> x) {
    constexpr int32_t kGroup = 64;
    double square = 0;
    for (size_t first = 0; first < x.size(); first += kGroup) {
      const auto group = x.subspan(first, std::min(size_t(kGroup), x.size() - first));
      quantise_group(
          int32_t(group.size()), levels_of(4), [&](int32_t c) { return group[size_t(c)]; },
          [&](int32_t c, double back) {
            const double lost = double(group[size_t(c)]) - back;
            square += lost * lost;
          });
    }
    return square;
  }
  void add(const Cache auto& cache, int32_t row) const {
    double key = 0, value = 0;
    for (int32_t b = 0; b < cache.shape().blocks; ++b)
      key += square_error(cache.key(row, b)), value += square_error(cache.value(row, b));
    of(cache, row) = std::sqrt(key) + std::sqrt(value);
  }
  // For rows that have none yet.
  void add_missing(const Team auto& team, const Cache auto& cache) const {
    team.each(cache.size(), [&](int32_t i) {
      if (of(cache, i) == 0) add(cache, i);
    });
  }
  double& of(const Cache auto& cache, int32_t row) const { return of_token[size_t(cache.token(row))]; }
};

// (x - min) / (max - min) over the rows first .. end - 1; 0 if they are equal.
struct MinMax {
  double low = 0, high = 0;
  static MinMax over(const Team auto& team, int32_t first, int32_t end, auto x) {
    const auto at = [&](int32_t i) { return x(first + i); };
    return {team.smallest(end - first, at).score, team.largest(end - first, at).score};
  }
  double operator()(double x) const { return high > low ? (x - low) / (high - low) : 0; }
};

// z = c mm(A) + (c - 1)/2 mm(E) + (1 - c), mm over the candidates of a cut.
struct AgainstErrors {
  double c;
  Int4Errors errors;
  MinMax of_a{}, of_e{};

  // a(row): A. The first `protect.sinks` tokens of the text and the last `protect.recent` rows are no candidates.
  void scale(const Team auto& team, const Cache auto& cache, Protect protect, auto a) {
    const int32_t first = held_sinks(cache, protect.sinks), end = cache.size() - protect.recent;
    if (first >= end) return;
    of_a = MinMax::over(team, first, end, a);
    of_e = MinMax::over(team, first, end, [&](int32_t i) { return errors.of(cache, i); });
  }
  double operator()(const Cache auto& cache, int32_t row, double a) const {
    return c * of_a(a) + (c - 1) / 2 * of_e(errors.of(cache, row)) + (1 - c);
  }
};

}  // namespace kvreplay::h2o_scores
