#pragma once
#include <kvreplay/core/policy.hpp>
#include <kvreplay/core/vectors.hpp>

namespace kvreplay {

// Keeps the recent tokens, and the others with the longest keys. Made up for another project.
struct LastAndLoud {
  static constexpr MethodInfo info{
      .name = "last_and_loud",
      .title = "recent window + longest keys",
      .source = "made up for a test",
      .tier = 3,
      .memory = "B tokens",
      .deviation = "",
  };
  static constexpr Hooks hooks{"evict"};
  int32_t recent = 4;
  int32_t budget = 0;

  static void declare(auto& d) { d.integer("recent", &LastAndLoud::recent, {0, kManyTokens}, "last tokens that stay"); }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens;
    if (recent > budget) throw ParameterError("recent", "recent exceeds the budget; give fewer recent tokens");
  }
  void evict(const Team auto& team, Cache auto& cache) {
    if (cache.size() <= budget) return;
    keep_best(team, cache, {.recent = recent}, budget - recent, [&](int32_t i) { return norm(cache.key(i)); });
  }
};

}  // namespace kvreplay
