#pragma once
#include "methods/parts/step_scores.hpp"

namespace kvreplay {

// A sparse pattern over absolute token indices, in the manner of the sparse transformers. M defines which tokens are in
// the pattern; tokens outside are evicted. With `with_h2o` half of the budget goes to heavy hitters outside the
// pattern.
//  M::inside(j, t)    whether token j <= t is in the pattern of row t
//  M::shape(B', n)    derives parameters from the pattern's budget B' and the length of the trace
template <class M>
struct SparsePattern {
  bool with_h2o = false;
  int32_t heavy = 0, budget = 0, prompt = 0, tokens = 0;

  static void declare_heavy(auto& d) {
    d.boolean("with_h2o", static_cast<bool M::*>(&M::with_h2o),
              "floor(B/2) of the budget is for heavy hitters outside the pattern, B' the rest");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens, prompt = context.prompt_tokens, tokens = context.tokens;
    heavy = with_h2o ? budget / 2 : 0;
    if (budget < tokens) self().shape(budget - heavy, tokens);
  }
  Layout layout(const MethodContext&) const { return {.scores = with_h2o}; }
  PromptNeeds needs(const MethodContext&) const { return {.column_sums_from = with_h2o ? 0 : PromptNeeds::kNoRows}; }
  void traits(Traits& t) const {
    t.observes = with_h2o;
    t.implied_layout = !with_h2o;
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& p, BasicCache<Real>& cache) {
    if (with_h2o) accumulate_prompt(team, p, cache);
  }
  void observe(const Team auto& team, Cache auto& cache, std::span<const double> p) {
    if (with_h2o) accumulate(team, cache, p);
  }
  void evict(const Team auto& team, Cache auto& cache) {
    const int32_t n = cache.size(), t = cache.token(n - 1);
    if (budget >= tokens || (t < prompt && n <= budget)) return;
    const auto inside = [&](int32_t i) { return self().inside(cache.token(i), t); };
    if (!with_h2o) return cache.retain(team, inside);
    const int32_t outside = n - team.count(n, inside);
    const auto score = [&](int32_t i) { return inside(i) ? -1.0 : cache.score(i); };
    choose_top(team, n, heavy < outside ? heavy : outside, score,
               [&](int32_t i, bool yes) { cache.mark(i) = yes || inside(i) ? 1 : 0; });
    cache.retain(team, [&](int32_t i) { return cache.mark(i) != 0; });
  }

 private:
  M& self() { return static_cast<M&>(*this); }
};

}  // namespace kvreplay
