#pragma once
#include "core/policy.hpp"

namespace kvreplay {

// Keeps the even tokens and the recent ones. Made up to show that a method is one file and one line.
struct EveryOther {
  static constexpr MethodInfo info{
      .name = "every_other",
      .title = "even tokens + recent window",
      .source = "made up for a test",
      .tier = 3,
      .memory = "B tokens",
      .deviation = "",
  };
  static constexpr Hooks hooks{"evict"};
  int32_t recent = 4;
  int32_t budget = 0;

  static void declare(auto& d) { d.integer("recent", &EveryOther::recent, {0, kManyTokens}, "last tokens that stay"); }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens;
    if (recent > budget) throw ParameterError("recent", "recent exceeds the budget; give fewer recent tokens");
  }
  void evict(const Team auto& team, Cache auto& cache) {
    if (cache.size() <= budget) return;
    keep_best(team, cache, {.recent = recent}, budget - recent,
              [&](int32_t i) { return cache.token(i) % 2 == 0 ? 1.0 : 0.0; });
  }
};

}  // namespace kvreplay
