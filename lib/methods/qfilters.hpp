#pragma once
#include "core/selecting.hpp"
#include "methods/parts/fixed_scores.hpp"

namespace kvreplay {

// Q-Filters, Godey et al. 2025, section 3: one direction per head predicts which keys its queries attend to.
//  1. Calibration, on queries of this or other text: per query head the first right singular vector of the rotated,
//     uncentred queries, with the sign for which more than half of the queries have a positive product with it.
//  2. f = mean of these over the group.
//  3. s_j = <f, k_j>, computed once when token j arrives.
//  4. Keep the last `recent` and the top B - recent.
struct QFilters : Selecting<0, 32> {
  static constexpr MethodInfo info{
      .name = "qfilters",
      .title = "keys along the main direction of the queries",
      .source = "Q-Filters, Godey et al. 2025, section 3",
      .tier = 3,
      .memory = "B tokens",
      .deviation =
          "the direction is that of the prompt's queries unless `calibration` names other text, as the release "
          "does; kvpress protects no recent tokens.",
      .default_phase = Phase::oneshot,
      .layer_level = false,
      .selects = true,
  };
  static constexpr Hooks hooks{"read_prompt evict layout needs protection state"};
  std::span<double> state;  // f [d]

  static void declare(auto& d) {
    d.calibration("queries that define the direction: those of this prompt, or of other text");
    protect<QFilters>(d);
  }
  Layout layout(const MethodContext& context) const { return {.state_doubles = context.shape.dim, .scores = true}; }
  PromptNeeds needs(const MethodContext&) const { return {.whole = true, .known = {.directions = true}}; }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    mean_direction(team, prompt, state);
    team.each(cache.size(), [&](int32_t i) { cache.score(i) = wide_dot(prompt.key(cache.token(i)), state); });
  }
  // Rows of the prompt have their score from its end, later ones from their own step.
  void evict(const Team auto& team, Cache auto& cache) {
    const int32_t newest = cache.size() - 1;
    if (newest >= 0) team.each(1, [&](int32_t) { cache.score(newest) = wide_dot(cache.key(newest), state); });
    Selecting::evict(team, cache);
  }
};

}  // namespace kvreplay
