#pragma once
#include "core/selecting.hpp"

namespace kvreplay {

// The ceiling of every one-shot eviction that only selects tokens. IT SEES THE FUTURE: for regret only.
//  1. F[i] = sum over all scored decode rows and the group of x_t(i), for prompt tokens i.
//  2. Keep the top B.  3. Later tokens are kept.
// Weighted sampling can still have a lower error in diffuse layers, because this oracle uses no weights.
struct StaticOracle : Selecting<> {
  static constexpr MethodInfo info{
      .name = "static_oracle",
      .title = "largest attention from all later rows (oracle: sees the future)",
      .source = "ceiling; definition",
      .tier = 1,
      .memory = "B prompt tokens and every later one",
      .deviation = "",
      .streams = false,
      .default_phase = Phase::oneshot,
  };
  static constexpr Hooks hooks{"read_prompt evict layout needs traits protection set_options"};
  bool per_head = false;

  void traits(Traits& t) const { t.heads_differ = per_head; }

  static void declare(auto& d) {
    d.boolean("per_head", &StaticOracle::per_head, "every query head has its own list (gqa.level: query)");
    protect<StaticOracle>(d);
  }
  void resolve(const MethodContext& context) {
    Selecting::resolve(context);
    if (per_head && context.shape.heads > 1)
      throw ParameterError("per_head", "per_head means gqa.level: query, but another level is set; leave one out");
  }
  static void set_options(const StaticOracle& m, CommonOptions& options) {
    if (m.per_head) options.gqa_level = GqaLevel::query;
  }
  PromptNeeds needs(const MethodContext&) const { return {.future_sums = true}; }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    team.each(cache.size(), [&](int32_t i) { cache.score(i) = prompt.future_sum(cache.token(i)); });
  }
};

}  // namespace kvreplay
