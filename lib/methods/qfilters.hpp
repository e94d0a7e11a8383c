#pragma once
#include "core/linear.hpp"
#include "core/selecting.hpp"

namespace kvreplay {

// Q-Filters, Godey et al. 2025, section 3: one direction per head tells which keys its queries attend to.
//  1. Per query head the first right singular vector of the prompt's queries, as they are rotated and not centred.
//  2. Its sign is such that more than half of the queries have a positive product with it.
//  3. f = mean of these over the group.
//  4. s_j = <f, k_j>, once for all when token j arrives.
//  5. Keep the last `recent` and the top B - recent.
struct QFilters : Selecting<0, 32> {
  static constexpr MethodInfo info{
      .name = "qfilters",
      .title = "keys along the main direction of the queries",
      .source = "Q-Filters, Godey et al. 2025, section 3",
      .tier = 3,
      .memory = "B tokens",
      .deviation =
          "the direction is that of the prompt's own queries, not of a calibration set; kvpress protects no recent "
          "tokens.",
      .default_phase = Phase::oneshot,
      .layer_level = false,
  };
  static constexpr Hooks hooks{"read_prompt evict layout needs protection state"};
  enum class Calibration { self };
  Calibration calibration = Calibration::self;
  std::span<double> state;  // f [d], then Work

  static void declare(auto& d) {
    d.choice("calibration", &QFilters::calibration, {"self"}, "whose queries the direction is found from");
    protect<QFilters>(d);
  }
  Layout layout(const MethodContext& context) const {
    const int64_t d = context.shape.dim;
    return {.state_doubles = 3 * d + 2 * d * d, .scores = true};
  }
  PromptNeeds needs(const MethodContext&) const { return {.queries = true}; }

  template <class Real>
  KVR_FN void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const int32_t d = prompt.shape().dim, heads = prompt.shape().heads;
    const Work w = carve(d);
    team.each(d, [&](int32_t c) { w.filter[size_t(c)] = 0; });
    for (int32_t h = 0; h < heads; ++h) {
      const double sign = direction(team, prompt, h, w);
      team.each(d, [&](int32_t c) { w.filter[size_t(c)] += sign * w.vector[size_t(c)] / heads; });
    }
    team.each(cache.size(), [&](int32_t i) { cache.score(i) = wide_dot(prompt.key(cache.token(i)), w.filter); });
  }
  // All rows but the newest have their score.
  KVR_FN void evict(const Team auto& team, Cache auto& cache) {
    const int32_t newest = cache.size() - 1;
    const std::span<const double> filter = state.first(size_t(cache.shape().dim));
    if (newest >= 0) team.each(1, [&](int32_t) { cache.score(newest) = wide_dot(cache.key(newest), filter); });
    Selecting::evict(team, cache);
  }

 private:
  struct Work {
    std::span<double> filter, query, vector, gram, power;
  };
  KVR_FN Work carve(int64_t d) const {
    Carver cut{state.data()};
    return {cut(d), cut(d), cut(d), cut(d * d), cut(d * d)};
  }
  // Steps 1 and 2 of one query head: the sign that w.vector takes.
  template <class Real>
  KVR_FN double direction(const Team auto& team, const Prompt<Real>& prompt, int32_t head, const Work& w) const {
    const int32_t d = prompt.shape().dim;
    team.each(d * d, [&](int32_t i) { w.gram[size_t(i)] = 0; });
    for (int32_t row = 0; row < prompt.size(); ++row) {
      const auto query = prompt.query(head, row);
      team.each(d, [&](int32_t c) { w.query[size_t(c)] = double(query[size_t(c)]); });
      add_outer(team, w.gram, w.query);
    }
    complete(team, w.gram, d, 0);
    first_eigenvector(team, w.gram, d, w.power, w.vector);
    const auto agrees = [&](int32_t row) { return wide_dot(prompt.query(head, row), w.vector) > 0; };
    return 2 * team.count(prompt.size(), agrees) > prompt.size() ? 1 : -1;
  }
};

}  // namespace kvreplay
