#pragma once
#include "core/cut.hpp"
#include "core/policy.hpp"

namespace kvreplay {

// The last B tokens, the newest included: the baseline of every paper. If a model has its attention sinks at the start,
// evicting them makes the error exceed 1; that is the expected result.
struct Window {
  static constexpr MethodInfo info{
      .name = "window",
      .title = "sliding window",
      .source = "baseline of H2O, BUZZ, SubGen and BalanceKV",
      .tier = 1,
      .memory = "B tokens",
      .deviation = "",
      .selects = true,
      .implied_layout = true,
      .alias = "sliding_window",
  };
  static constexpr Hooks hooks{"evict"};
  CutPlan plan;

  static void declare(auto&) {}
  void resolve(const MethodContext& context) { plan = cut_plan(context, {}); }

  void evict(const Team auto& team, Cache auto& cache) { keep_newest(team, cache, plan, 0); }
};

}  // namespace kvreplay
