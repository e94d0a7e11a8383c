#pragma once
#include "catalog/make_policy_table.hpp"
#include "catalog/method.hpp"

// Small policies that exist only for tests of configurations and plans.

namespace stub {

using namespace kvreplay;

// Sinks and a recent window inside the budget; both phases, cache positions by default.
struct Keeper {
  static constexpr MethodInfo info{.name = "keeper",
                                   .title = "",
                                   .source = "",
                                   .tier = 1,
                                   .memory = "",
                                   .deviation = "",
                                   .default_positions = Positions::cache,
                                   .alias = "guardian"};
  static constexpr Hooks hooks{"observe"};
  int32_t sinks = 4, recent = kDerived, first = 0;
  double share = 0.5;
  bool strict = false;

  static void declare(auto& d) {
    d.integer("sinks", &Keeper::sinks, {0, kManyTokens}, "");
    d.integer("recent", &Keeper::recent, {0, kManyTokens}, "", "B - sinks");
    d.real("share", &Keeper::share, {1e-12, 1}, "");
    d.boolean("strict", &Keeper::strict, "");
    d.integer_or_word("first", &Keeper::first, {0, 100}, "random", "");
  }
  void resolve(const MethodContext& context) {
    if (recent == kDerived) recent = context.budget.tokens - sinks;
    if (recent < 0)
      throw ParameterError(
          "sinks", "sinks " + std::to_string(sinks) + " exceed the budget of " + std::to_string(context.budget.tokens));
  }
  void observe(const Team auto&, Cache auto&, std::span<const double>) {}
};

// One phase, no budget.
struct Pooler {
  static constexpr MethodInfo info{.name = "pooler",
                                   .title = "",
                                   .source = "",
                                   .tier = 2,
                                   .memory = "",
                                   .deviation = "",
                                   .streams = false,
                                   .default_phase = Phase::oneshot,
                                   .takes_budget = false};
  static constexpr Hooks hooks{""};
  enum class Pool { max, avg };
  int32_t kernel = 7;
  Pool pool = Pool::max;

  static void declare(auto& d) {
    d.integer("kernel", &Pooler::kernel, {1, 9}, "");
    d.choice("pool", &Pooler::pool, {"max", "avg"}, "");
  }
  void resolve(const MethodContext&) {}
};

// Exposes the context that it was resolved for.
struct Kept {
  static constexpr MethodInfo info{.name = "keep", .title = "", .source = "", .tier = 1, .memory = "", .deviation = ""};
  static constexpr Hooks hooks{""};
  double factor = 1;
  int32_t resolved_for = 0, heads = 0;

  static void declare(auto& d) {
    d.real("factor", &Kept::factor, {0, 10}, "");
    d.integer("resolved_for", &Kept::resolved_for, {0, kManyTokens}, "");
    d.integer("heads", &Kept::heads, {0, kManyTokens}, "");
  }
  void resolve(const MethodContext& context) { resolved_for = context.budget.tokens, heads = context.shape.heads; }
};
struct Drawn : Kept {
  static constexpr MethodInfo info{.name = "draw", .title = "", .source = "", .tier = 1, .memory = "", .deviation = ""};
  static constexpr Hooks hooks{"traits rng rng_arrays"};
  Rng rng{};
  void traits(Traits& t) const { t.random = true; }
  std::vector<RngArray> rng_arrays(const MethodContext&) const {
    return {{"u", RngStream::uniform_sampling, 1, 80, 1}};
  }
};
struct Full : Kept {
  static constexpr MethodInfo info{
      .name = "full", .title = "", .source = "", .tier = 1, .memory = "", .deviation = "", .takes_budget = false};
  static constexpr Hooks hooks{""};
};

template <class P>
const Method& method() {
  static const Method one(policy_table<P>());
  return one;
}

}  // namespace stub
