#pragma once
#include "core/cache.hpp"
#include "core/linear.hpp"
#include "core/rotary.hpp"

// A few keys whose masses and values are fitted to reproduce attention over many keys, for a set of training queries.

namespace kvreplay {

enum class TrainOn { reroped, prompt, future };

// The queries to match, head after head. If there are more than `most`, every n-th one, n = ceil(all / most).
template <class Real>
struct TrainingQueries {
  const Prompt<Real>& prompt;
  TrainOn which;
  int32_t most;

  static int64_t step(int64_t all, int64_t most) { return (all + most - 1) / most; }
  static int32_t count(int64_t all, int64_t most) { return int32_t((all - 1) / step(all, most) + 1); }
  int32_t rows() const { return which == TrainOn::future ? prompt.future_tokens() - prompt.size() : prompt.size(); }
  int64_t all() const { return int64_t(prompt.shape().heads) * rows(); }
  int32_t size() const { return count(all(), most); }
  void place(const Team auto& team, int32_t i, std::span<double> to) const {
    const int64_t at = i * step(all(), most);
    const int32_t head = int32_t(at / rows()), row = int32_t(at % rows());
    const auto q = which == TrainOn::future ? prompt.future_query(head, prompt.size() + row) : prompt.query(head, row);
    team.each(int32_t(q.size()), [&](int32_t c) { to[size_t(c)] = double(q[size_t(c)]); });
    if (which != TrainOn::reroped) return;
    // Rotates from its recorded position to one of the 512 after the prompt: both rotations in one.
    const int32_t behind = prompt.position(prompt.size() - 1) + 1 + row % 512;
    rotate(team, prompt.rope(), behind - prompt.position(row), to.data());
  }
};

// The rows of the cache as the training queries see them. After watch() the cache is cut to `kept` rows, which are then
// fitted.
template <class Real>
struct AttentionFit {
  TrainingQueries<Real> queries;
  const BasicCache<Real>& cache;
  int32_t kept, N, dv;
  std::span<double> top, sum, targets;       // [N] largest logit, [N] sum, [N, dv] exact output of each query
  std::span<double> query, e, out, scratch;  // scratch for one query (the first three) and for the descent
  LeastSquares masses, values;

  // Doubles needed for N queries over `keys` rows.
  static int64_t doubles(int64_t N, int64_t keys, int64_t kept, int64_t d, int64_t dv) {
    return N * (dv + 2) + d + keys + dv + 2 * kept * kept + kept * (2 * dv + 4);
  }
  AttentionFit(const TrainingQueries<Real>& q, const BasicCache<Real>& c, int32_t keep, double* state)
      : queries(q), cache(c), kept(keep), N(q.size()), dv(c.shape().v_dim) {
    Carver cut{state};
    const int64_t rows = kept, numbers = rows * dv;
    top = cut(N), sum = cut(N), targets = cut(int64_t(N) * dv);
    query = cut(c.shape().dim), e = cut(c.size()), out = cut(dv), scratch = cut(2 * rows);
    const auto gram = cut(rows * rows), factor = cut(rows * rows);  // shared by the two fits, which run one after the
                                                                    // other
    masses = {kept, 1, gram, factor, cut(rows), cut(rows)};
    values = {kept, dv, gram, factor, cut(numbers), cut(numbers)};
  }
  double mass(int32_t j) const { return masses.solution[size_t(j)]; }
  std::span<double> value(int32_t j) const { return part(values.solution, j); }

  // Computes the exact attention of every query; calls score(j, p) with each probability p of row j.
  template <class S>
  void watch(const Team auto& team, S score) const {
    const int32_t n = cache.size();
    for (int32_t i = 0; i < N; ++i) {
      logits(team, i);
      const double largest = team.largest(n, [&](int32_t j) { return e[size_t(j)]; }).score;
      team.each(n, [&](int32_t j) { e[size_t(j)] = std::exp(e[size_t(j)] - largest); });
      const double total = team.sum(n, [&](int32_t j) { return e[size_t(j)]; });
      top[size_t(i)] = largest, sum[size_t(i)] = total;
      team.each(n, [&](int32_t j) { score(j, e[size_t(j)] /= total); });
      weigh_values(
          n, [&](int32_t j) { return cache.value(j); }, part(targets, i));
    }
  }
  // Fits masses between exp(-clip) and exp(clip): clipped least squares, then steps of projected gradient descent.
  bool fit_masses(const Team auto& team, double ridge, double clip, int32_t steps) const {
    masses.clear(team);
    for (int32_t i = 0; i < N; ++i) {
      logits(team, i);
      team.each(kept, [&](int32_t j) { e[size_t(j)] = std::exp(e[size_t(j)] - top[size_t(i)]); });
      masses.add(team, e.first(size_t(kept)), sum.subspan(size_t(i), 1));
    }
    if (!masses.solve(team, ridge)) return false;
    const auto w = masses.solution;
    const auto clipped = [&](double x) { return std::fmin(std::fmax(x, std::exp(-clip)), std::exp(clip)); };
    team.each(kept, [&](int32_t j) { w[size_t(j)] = clipped(w[size_t(j)]); });
    const double rate = 1 / largest_eigenvalue(team, masses.gram, kept, scratch);
    for (; steps > 0; --steps) {
      team.each(kept, [&](int32_t j) {
        const double slope = dot(masses.gram.data() + int64_t(j) * kept, w.data(), kept) - masses.right[size_t(j)];
        scratch[size_t(j)] = clipped(w[size_t(j)] - rate * slope);
      });
      team.each(kept, [&](int32_t j) { w[size_t(j)] = scratch[size_t(j)]; });
    }
    return true;
  }
  bool fit_values(const Team auto& team, double ridge) const {
    values.clear(team);
    for (int32_t i = 0; i < N; ++i) {
      probabilities(team, i);
      values.add(team, e.first(size_t(kept)), part(targets, i));
    }
    return values.solve(team, ridge);
  }
  // Mean relative error on the training queries.
  double error(const Team auto& team) const {
    double mean = 0;
    for (int32_t i = 0; i < N; ++i) {
      probabilities(team, i);
      weigh_values(
          kept, [&](int32_t j) { return value(j); }, out);
      const double length = norm(part(targets, i));
      if (length > 0) mean += std::sqrt(squared_distance(out, part(targets, i))) / length / N;
    }
    return mean;
  }

 private:
  std::span<double> part(std::span<double> rows, int32_t i) const {
    return rows.subspan(size_t(i) * size_t(dv), size_t(dv));
  }
  void logits(const Team auto& team, int32_t i) const {
    queries.place(team, i, query);
    team.each(cache.size(), [&](int32_t j) {
      e[size_t(j)] = queries.prompt.scale() * wide_dot(cache.key(j), std::span<const double>(query));
    });
  }
  // Attention probabilities over the kept rows with their masses.
  void probabilities(const Team auto& team, int32_t i) const {
    logits(team, i);
    team.each(kept, [&](int32_t j) { e[size_t(j)] += std::log(mass(j)); });
    softmax(team, e.first(size_t(kept)));
  }
  template <class V>
  void weigh_values(int32_t n, V row, std::span<double> to) const {
    weighted_sum(
        n, [&](int32_t j) { return e[size_t(j)]; }, row, to);
  }
};

}  // namespace kvreplay
