#pragma once
#include "core/linear.hpp"
#include "methods/parts/read_sets.hpp"

namespace kvreplay {

// Loki, Singhania et al. 2024, section 4: tokens are ranked by the main directions of the keys.
//  1. End of the prompt: eigenvectors of the covariance of its keys, as they are stored, by descending eigenvalue; V =
//     the first r.
//  2. Step: s_j = scale <q V, k_j V>, which leaves the mean key in, a constant of the step.
//  3. Read exactly the top B; no token is always read.
struct Loki {
  static constexpr MethodInfo info{
      .name = "loki",
      .title = "tokens by the main directions of the keys",
      .source = "Loki, Singhania et al. 2024, section 4",
      .tier = 3,
      .memory = "the full cache, its keys stored rotated to the directions; the budget bounds what is read",
      .deviation =
          "the directions are those of the prompt that is replayed; the release learns them from other text, which "
          "`calibration` cannot name yet, as no file holds moments of keys. Directions of keys before rotation are "
          "left out.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .implied_layout = true,
      .reads_full_cache = true,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{
      "read_prompt append choose token_score extra_bytes report layout needs traits set_options state"};
  enum class From { self };
  int32_t r = kDerived;
  From calibration = From::self;
  LayerSet dense_layers{};
  int32_t budget = 0, tokens = 0, dim = 0;
  bool dense = false;
  std::span<double> state;  // Work

  static void declare(auto& d) {
    d.integer("r", &Loki::r, {1, kManyTokens}, "directions", "a quarter of a key's channels");
    d.choice("calibration", &Loki::calibration, {"self"}, "keys that define the directions: those of this prompt");
    d.layers("dense_layers", &Loki::dense_layers, "layers that read everything");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens, tokens = context.tokens, dim = context.shape.dim;
    dense = dense_layers.has(context.layer);
    if (r == kDerived) r = dim / 4 > 1 ? dim / 4 : 1;
    if (dim > 0 && r > dim)
      throw ParameterError("r", "r " + std::to_string(r) + " exceeds the " + std::to_string(dim) +
                                    " channels of a key; take fewer directions");
  }
  static void set_options(const Loki&, CommonOptions& options) { options.gqa_level = GqaLevel::query; }
  Layout layout(const MethodContext&) const {
    if (dense) return {};
    return {.state_doubles = (int64_t(r) + 1 + dim) * dim + int64_t(r + 1) * tokens};
  }
  PromptNeeds needs(const MethodContext&) const { return {.whole = !dense}; }
  void traits(Traits& t) const { t.max_rows_read = dense || budget > tokens ? tokens : budget; }
  // The stored keys are the index.
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    if (!dense) c.sketch_floats_read = int64_t(cache.size()) * r;
  }
  // V is a constant of the layer, which no cache stores: 4 bytes a number, as for other calibrations.
  void report(auto& extras, const auto&) const {
    if (!dense) extras["calibration_bytes"] = 4.0 * dim * dim;
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>&, BasicCache<Real>& cache) {
    if (dense) return;
    const Work w = work();
    const int32_t n = cache.size();
    team.each(dim * dim, [&](int32_t i) { w.covariance[size_t(i)] = 0; });
    weighted_sum(
        n, [&](int32_t) { return 1.0 / n; }, [&](int32_t i) { return cache.key(i); }, w.vector);
    const std::span<double> mean = w.vector, centred = w.directions.first(size_t(dim));
    for (int32_t i = 0; i < n; ++i) {
      const auto key = cache.key(i);
      team.each(dim, [&](int32_t c) { centred[size_t(c)] = double(key[size_t(c)]) - mean[size_t(c)]; });
      add_outer(team, w.covariance, centred);
    }
    leading_eigenvectors(w.covariance, dim, r, w.directions);
    for (int32_t i = 0; i < n; ++i) store(team, cache, i);
  }
  template <class Real>
  void append(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    cache.push(token);
    if (!dense) store(team, cache, cache.size() - 1);
  }
  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen) {
    const GroupReads reads{chosen, queries.heads, cache.size()};
    if (dense) return reads.put_run(team, 0, reads.rows, kRead);
    const Work w = work();
    score(team, queries, w, cache.token(0), reads.rows);
    choose_top(
        team, reads.rows, budget, [&](int32_t i) { return w.scores[size_t(i)]; },
        [&](int32_t i, bool yes) { reads.put(i, yes ? kRead : kUnread); });
  }
  double token_score(const auto&, int32_t row) const { return dense ? INFINITY : work().scores[size_t(row)]; }

 private:
  struct Work {
    std::span<double> directions, vector;  // [r, dim] V, [dim] mean key
    std::span<double> scores, covariance;  // [tokens], [dim, dim]
    std::span<double> along;               // [r, tokens] keys along the directions
  };
  Work work() const {
    Carver cut{state.data()};
    return {cut(int64_t(r) * dim), cut(dim), cut(tokens), cut(int64_t(dim) * dim), cut(int64_t(r) * tokens)};
  }
  std::span<const double> direction(const Work& w, int32_t j) const {
    return w.directions.subspan(size_t(j) * size_t(dim), size_t(dim));
  }
  // Rotates the key of a row.
  void store(const Team auto& team, const auto& cache, int32_t row) const {
    const Work w = work();
    const size_t token = size_t(cache.token(row));
    team.each(
        r, [&](int32_t j) { w.along[size_t(j) * size_t(tokens) + token] = wide_dot(cache.key(row), direction(w, j)); });
  }
  // Step 2, summed over the heads. oldest: the token of the first row.
  template <class Real>
  void score(const Team auto& team, const StepQueries<Real>& queries, const Work& w, int32_t oldest,
             int32_t rows) const {
    double* const to = w.scores.data();
    team.each(rows, [&](int32_t i) { to[i] = 0; });
    for (int32_t j = 0; j < r; ++j) {
      double query = 0;
      for (int32_t h = 0; h < queries.heads; ++h) query += wide_dot(queries(h), direction(w, j));
      const double* const keys = &w.along[size_t(j) * size_t(tokens) + size_t(oldest)];
      wide([&] { KVR_SIMD for (int32_t i = 0; i < rows; ++i) to[i] += queries.scale * query * keys[i]; });
    }
  }
};

}  // namespace kvreplay
