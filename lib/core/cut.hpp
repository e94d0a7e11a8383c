#pragma once
#include <string>

#include "core/method_info.hpp"
#include "core/page_cut.hpp"

namespace kvreplay {

// The cut of a method with keep_prompt: the prompt's rows stay, and `m` rows of later tokens.
template <Team T, Cache C, class F>
void cut_behind_prompt(const T& team, C& cache, int32_t prompt, int32_t recent, int32_t m, F score) {
  const int32_t first = held_sinks(cache, prompt), later = cache.size() - first;
  if (later <= m) return;
  if (recent >= m) cache.retain(team, [&](int32_t i) { return i < first || i >= first + later - m; });
  else keep_best(team, cache, {.sinks = prompt, .recent = recent}, m - recent, score);
}

// Whether a cut is due, now that the newest row has been attended to.
bool is_due(const CutPlan& plan, const Cache auto& cache) {
  return cache.size() > 0 && plan.is_due(cache.token(cache.size() - 1));
}

// Whether the cut that is due now makes tokens leave.
bool exceeds(const CutPlan& plan, const Cache auto& cache) {
  const int32_t m = plan.target(cache.token(cache.size() - 1) + 1), kept = plan.options.keep_prompt ? plan.prompt : 0;
  if (plan.options.pages.whole()) return HeldPages(cache, plan.options.pages.size, {}, kept).full() > plan.pages(m);
  return cache.size() - held_sinks(cache, kept) > m;
}

// Cuts by the plan, if a cut is due. protect(m): the rows that stay where m tokens do. score(row): higher stays.
template <Team T, Cache C, class P, class F>
void cut(const T& team, C& cache, const CutPlan& plan, P protect, F score) {
  if (!is_due(plan, cache)) return;
  const int32_t m = plan.target(cache.token(cache.size() - 1) + 1);
  const Protect safe = protect(m);
  if (plan.options.pages.whole()) cut_pages(team, cache, plan, safe, m, score);
  else if (plan.options.keep_prompt) cut_behind_prompt(team, cache, plan.prompt, safe.recent, m, score);
  else keep_scored(team, cache, safe, m, score);
}

// The cut of a method by position: the first `sinks` tokens of the trace and the newest stay.
template <Team T, Cache C>
void keep_newest(const T& team, C& cache, const CutPlan& plan, int32_t sinks) {
  if (plan.is_plain()) return keep_ends(team, cache, sinks, plan.budget);
  cut(
      team, cache, plan, [&](int32_t) { return Protect{.sinks = sinks}; },
      [&](int32_t i) { return double(cache.token(i)); });
}

// A budget that grows must hold the tokens that are protected by number at its first cut.
inline void check_first_cut(const CutPlan& plan, int32_t protected_tokens) {
  const int32_t m = plan.target(plan.prompt);
  if (plan.growth.any() && protected_tokens > m)
    throw ParameterError("", std::to_string(protected_tokens) + " protected tokens exceed the " + std::to_string(m) +
                                 " of the first cut; raise floor or ratio_of_seen");
}

// The plan for a context. least: tokens that every cut protects. Throws ParameterError if they do not fit.
inline CutPlan cut_plan(const MethodContext& context, Protect least) {
  const CutPlan plan = plan_cuts(context);
  const int32_t m = plan.target(context.prompt_tokens);
  const std::string budget = " of the budget of " + std::to_string(context.budget.tokens);
  if (plan.options.cut_in_budget && least.sinks + least.recent >= m)
    throw ParameterError("cut_in_budget", "cut_every " + std::to_string(plan.every) + " and the " +
                                              std::to_string(least.sinks + least.recent) +
                                              " protected tokens leave nothing" + budget +
                                              " to choose; make them smaller or the budget larger");
  if (!plan.options.pages.whole()) return plan;
  const int32_t size = plan.options.pages.size, recent = least.recent > 1 ? least.recent - 1 : 0;
  const int32_t sinks = plan.options.keep_prompt ? 0 : least.sinks;
  const int32_t needs = (sinks + size - 1) / size + (recent + size - 1) / size + 1;
  if (needs > plan.pages(m))
    throw ParameterError("page", std::to_string(needs) + " pages of " + std::to_string(size) +
                                     " tokens are protected, more than fit into a budget of " +
                                     std::to_string(context.budget.tokens) +
                                     "; make pages smaller or the budget larger");
  return plan;
}

}  // namespace kvreplay
