#pragma once
#include "core/cut.hpp"
#include "core/policy.hpp"

namespace kvreplay {

// StreamingLLM, Xiao et al. 2023, section 3.2: the first tokens (attention sinks) and the most recent ones. Positions
// are re-assigned inside the cache by rotating the cached keys; `positions: original` leaves them unchanged, as most
// libraries run it. Published settings differ (4+512, 1+255, 4+2000, 4+160): quote sinks and window.
struct StreamingLlm {
  static constexpr MethodInfo info{
      .name = "streaming_llm",
      .title = "attention sinks + recent window",
      .source = "StreamingLLM, Xiao et al. 2023, section 3.2",
      .tier = 1,
      .memory = "B tokens; re-rotation is arithmetic, not memory",
      .deviation = "",
      .default_positions = Positions::cache,
      .selects = true,
      .implied_layout = true,
  };
  static constexpr Hooks hooks{"evict"};
  int32_t sinks = 4, room_for = 0;
  CutPlan plan;

  static void declare(auto& d) {
    d.integer("sinks", &StreamingLlm::sinks, {0, kManyTokens}, "first tokens of the trace that always stay");
    d.integer("room_for", &StreamingLlm::room_for, {0, kManyTokens},
              "tokens that get room before they arrive: B - room_for stay");
  }
  void resolve(const MethodContext& context) {
    const int32_t budget = context.budget.tokens - room_for;
    if (room_for > 0 && sinks >= budget)
      throw ParameterError("room_for", "room_for " + std::to_string(room_for) + " and sinks " + std::to_string(sinks) +
                                           " leave no recent token in a budget of " +
                                           std::to_string(context.budget.tokens) + "; lower them or raise the budget");
    if (sinks >= budget)
      throw ParameterError("sinks", "sinks " + std::to_string(sinks) +
                                        " leave no room for recent tokens in a budget of " + std::to_string(budget) +
                                        "; give fewer sinks or a larger budget");
    plan = cut_plan(context, {.sinks = sinks});
    check_first_cut(plan, sinks);
    plan.budget -= room_for;
  }

  void evict(const Team auto& team, Cache auto& cache) { keep_newest(team, cache, plan, sinks); }
};

}  // namespace kvreplay
