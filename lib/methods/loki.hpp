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
  static constexpr Hooks hooks{"read_prompt choose extra_bytes report layout needs traits set_options state"};
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
    return {.state_doubles = (int64_t(r) + 1 + dim) * dim + tokens};
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
  }
  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen) {
    const GroupReads reads{chosen, queries.heads, cache.size()};
    if (dense || reads.rows <= budget) return reads.put_run(team, 0, reads.rows, kRead);
    const Work w = work();
    project(team, queries, w);
    team.each(reads.rows, [&](int32_t i) { w.scores[size_t(i)] = queries.scale * wide_dot(cache.key(i), w.vector); });
    choose_top(
        team, reads.rows, budget, [&](int32_t i) { return w.scores[size_t(i)]; },
        [&](int32_t i, bool yes) { reads.put(i, yes ? kRead : kUnread); });
  }

 private:
  struct Work {
    std::span<double> directions, vector;  // [r, dim] V, [dim] mean key or projected query
    std::span<double> scores, covariance;  // [tokens], [dim, dim]
  };
  Work work() const {
    Carver cut{state.data()};
    return {cut(int64_t(r) * dim), cut(dim), cut(tokens), cut(int64_t(dim) * dim)};
  }
  // V V^T times the sum of the queries: its product with a key is the sum of the heads' <q V, k V>.
  template <class Real>
  void project(const Team auto& team, const StepQueries<Real>& queries, const Work& w) const {
    team.each(dim, [&](int32_t c) { w.vector[size_t(c)] = 0; });
    for (int32_t j = 0; j < r; ++j) {
      const std::span<double> axis = w.directions.subspan(size_t(j) * size_t(dim), size_t(dim));
      double along = 0;
      for (int32_t h = 0; h < queries.heads; ++h) along += wide_dot(queries(h), axis);
      team.each(dim, [&](int32_t c) { w.vector[size_t(c)] += along * axis[size_t(c)]; });
    }
  }
};

}  // namespace kvreplay
