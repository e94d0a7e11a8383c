#pragma once
#include "core/selecting.hpp"
#include "core/vectors.hpp"

namespace kvreplay {

// Key norms, Devoto et al. 2024, section 4: keys with a small L2 norm tend to receive much attention.
//  1. Keep the B keys of smallest ||k||_2 outside `recent`.
// `skip_layers` are left exact: in the first layers the correlation does not hold.
struct KNorm : Selecting<> {
  static constexpr MethodInfo info{
      .name = "knorm",
      .title = "keys of smallest norm",
      .source = "Devoto et al. 2024, A simple and effective L2 norm-based strategy, section 4",
      .tier = 2,
      .memory = "B tokens; in skipped layers all",
      .deviation = "",
      .default_phase = Phase::oneshot,
      .selects = true,
  };
  static constexpr Hooks hooks{"read_prompt evict layout traits protection"};
  LayerSet skip_layers;

  static void declare(auto& d) {
    d.layers("skip_layers", &KNorm::skip_layers, "layers that are left exact");
    protect<KNorm>(d);
  }
  void resolve(MethodContext context) {
    if (skip_layers.has(context.layer)) context.budget.tokens = context.tokens;
    Selecting::resolve(context);
  }
  void traits(Traits& t) const {
    t.max_rows = budget;
    if (recent == 0)
      t.warning_when_streaming =
          "streaming without recent tokens collapses: keys of large norm are evicted as soon as they arrive; give "
          "`recent`, for example a quarter of the budget";
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    team.each(cache.size(), [&](int32_t i) { cache.score(i) = -norm(prompt.key(cache.token(i))); });
  }
  void evict(const Team auto& team, Cache auto& cache) {
    if (cache.size() <= budget && plan.is_plain()) return;
    team.each(cache.size(), [&](int32_t i) {
      // A norm changes only where rows are merged or coded.
      if (cache.score(i) == 0 || !cache.verbatim_key(i)) cache.score(i) = -norm(cache.key(i));
    });
    Selecting::evict(team, cache);
  }
};

}  // namespace kvreplay
