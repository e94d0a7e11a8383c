#pragma once
#include "core/cut.hpp"
#include "core/policy.hpp"

namespace kvreplay {

// The form of most methods: the first `sinks` and the last `recent` tokens are protected (convention C16), and the
// tokens with the best scores fill the rest of the budget. A method derives from it, sets cache.score(row) in
// read_prompt() (and observe()), and calls protect() in declare(). With the options of serving (core/serving.hpp) the
// plan says when it cuts, and to how many tokens.
template <int32_t kSinks = 0, int32_t kRecent = 0>
struct Selecting {
  int32_t sinks = kSinks, recent = kRecent;
  int32_t budget = 0;
  CutPlan plan;

  template <class M>
  static void protect(auto& d, const char* recent_default = "") {
    d.integer("sinks", static_cast<int32_t M::*>(&M::sinks), {0, kManyTokens}, "first tokens that always stay");
    d.integer("recent", static_cast<int32_t M::*>(&M::recent), {0, kManyTokens},
              "last tokens that always stay, the newest included", recent_default);
  }
  void resolve(const MethodContext& context) { resolve(context, {.sinks = sinks, .recent = recent}); }
  // least: rows that every cut protects.
  void resolve(const MethodContext& context, Protect least) {
    budget = context.budget.tokens;
    const int32_t counted = context.serving.keep_prompt ? recent : sinks + recent;
    if (counted > budget) throw protection_error(sinks, recent, budget);
    plan = cut_plan(context, least);
    check_first_cut(plan, counted);
  }
  // For methods that find their budget themselves, after resolve().
  void set_budget(int32_t tokens) { budget = plan.budget = tokens; }
  Layout layout(const MethodContext&) const { return {.scores = true}; }
  Protect protection() const { return {.sinks = sinks, .recent = recent}; }

  void evict(const Team auto& team, Cache auto& cache) { cut_by_scores(team, cache, protection()); }

 protected:
  void cut_by_scores(const Team auto& team, Cache auto& cache, Protect safe) const {
    cut(
        team, cache, plan, [&](int32_t) { return safe; }, [&](int32_t i) { return cache.score(i); });
  }
};

// A scorer inside another method: one of the structs of `Scorers`, chosen by `kind`. The wrapping method uses its
// prompt scores, its protection, its needs and the options that its variant implies, and selects the kept tokens
// itself. Scores must not depend on the budget, so a scorer is resolved for a budget that holds the whole prompt.
template <class Scorers>
struct Wrapped : Scorers {
  static constexpr int32_t kinds = Scorers::kinds;
  int32_t kind = Scorers::usual;

  decltype(auto) visit(auto&& f) { return Scorers::pick(*this, kind, f); }
  decltype(auto) visit(auto&& f) const { return Scorers::pick(*this, kind, f); }

  const char* name() const {
    return visit([]<class P>(const P&) { return P::info.name; });
  }
  void set_options(CommonOptions& options) const {
    visit([&]<class P>(const P& p) {
      if constexpr (P::hooks.has(Hook::set_options)) P::set_options(p, options);
    });
  }
  void resolve(MethodContext context) {
    context.budget = {context.prompt_tokens, double(context.prompt_tokens)};
    visit([&](auto& p) { p.resolve(context); });
  }
  int64_t state_doubles(const MethodContext& context) const {
    return visit([&](const auto& p) -> int64_t { return p.layout(context).state_doubles; });
  }
  PromptNeeds needs(const MethodContext& context) const {
    return visit([&]<class P>(const P& p) {
      if constexpr (HasNeeds<P>) return p.needs(context);
      else return PromptNeeds{};
    });
  }
  // Prompt tokens that no selection may evict.
  Protect protection() const {
    return visit([](const auto& p) { return p.protection(); });
  }
  // `state`: as many doubles as state_doubles() returned.
  void bind(std::span<double> state) {
    visit([&]<class P>(P& p) {
      if constexpr (HasState<P>) p.state = state;
    });
  }
  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    visit([&](auto& p) { p.read_prompt(team, prompt, cache); });
  }
};

}  // namespace kvreplay
