#pragma once
#include "core/policy.hpp"

namespace kvreplay {

// The form of most methods: the first `sinks` and the last `recent` tokens are protected (convention C16), and the
// tokens with the best scores fill the rest of the budget. A method derives from it, sets cache.score(row) in
// read_prompt() (and observe()), and calls protect() in declare().
template <int32_t kSinks = 0, int32_t kRecent = 0>
struct Selecting {
  int32_t sinks = kSinks, recent = kRecent;
  int32_t budget = 0;

  template <class M>
  static void protect(auto& d, const char* recent_default = "") {
    d.integer("sinks", static_cast<int32_t M::*>(&M::sinks), {0, kManyTokens}, "first tokens that always stay");
    d.integer("recent", static_cast<int32_t M::*>(&M::recent), {0, kManyTokens},
              "last tokens that always stay, the newest included", recent_default);
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens;
    if (sinks + recent > budget) throw protection_error(sinks, recent, budget);
  }
  Layout layout(const MethodContext&) const { return {.scores = true}; }
  KVR_FN Protect protection() const { return {.sinks = sinks, .recent = recent}; }

  KVR_FN void evict(const Team auto& team, Cache auto& cache) {
    keep_scored(team, cache, {.sinks = sinks, .recent = recent}, budget);
  }
};

}  // namespace kvreplay
