#pragma once
#include "core/attend.hpp"
#include "core/layer_window.hpp"
#include "core/policy.hpp"

// One step of the replay. `heads` provides the logits of the query heads and takes their outputs; the policy sees
// neither. `calls` are the policy's hooks (core/policy.hpp).

namespace kvreplay {

struct StepRules {
  bool streaming = true;     // the budget is enforced after every step (phase: stream)
  bool evict_first = false;  // order: evict_then_attend
  LayerWindow window;        // tokens outside it are evicted for every method
  Aggregate aggregate = Aggregate::sum;
  int32_t chunked = 0;  // tokens of a prompt that arrives in chunks: its rows decide too, whatever the phase
  // Whether the policy decides in the step of token t.
  bool decides(int32_t t) const { return streaming || t < chunked; }
};

// Scratch memory of one step, shared by all caches that one team replays. Extents in elements.
template <class Real>
struct StepScratch {
  Real *e, *coefficients;      // [rows]
  double* group;               // [rows]: probabilities aggregated over the query heads
  double* by_head;             // [heads, rows]: for methods that see every query head
  uint8_t* chosen;             // [heads, rows]: for query-time methods
  double* weights = nullptr;   // [heads, rows]: for methods that weigh the rows they read
  double* log_sums = nullptr;  // [heads]: logarithms of the denominators, to go with by_head
};

template <class Real, Team T>
void collect(const T& team, Aggregate how, int32_t head, int32_t heads, int32_t rows, const Real* e, double* group) {
  if (how == Aggregate::first && head > 0) return;
  team.each(rows, [&](int32_t i) {
    const double p = double(e[i]);
    if (head == 0) group[i] = p;
    else if (how == Aggregate::max) group[i] = p > group[i] ? p : group[i];
    else group[i] += p;
    if (how == Aggregate::mean && head + 1 == heads) group[i] /= heads;
  });
}

struct NoOutput {
  template <Team T, Cache C>
  void add(const T&, const C&, std::span<const typename C::real>) const {}
};

// Asks a query-time method which rows it reads in this step.
template <class Calls, Team T, Cache C, class Heads, class Real = typename C::real>
void choose_rows(const T& team, const Calls& calls, const C& cache, Aggregate how, Heads& heads,
                 const StepScratch<Real>& scratch) {
  const int32_t rows = cache.size(), n_heads = cache.shape().heads;
  if (!calls.chooses_by_mass())
    return calls.choose(team, cache, heads.queries_of_step(), scratch.chosen, scratch.weights);
  const std::span<Real> e{scratch.e, size_t(rows)}, coefficients{scratch.coefficients, size_t(rows)};
  for (int32_t h = 0; h < n_heads; ++h) {
    const auto view = heads.view(h);
    attend(team, view, heads.source(h, view), cache, e, coefficients, NoOutput{});
    team.each(rows, [&](int32_t i) { scratch.by_head[int64_t(h) * rows + i] = double(e[i]); });
  }
  calls.choose(team, cache, HeadProbabilities{scratch.by_head, n_heads, rows, how}, scratch.chosen);
}

// Attends with every query head of the cache. `heads.view(h)`, `heads.source(h, view)` and `heads.writer(h)` define
// how; `heads.done(h, normaliser, cache, chosen)` takes the result. `e` then holds the probabilities, 0 where a row was
// not read.
template <class Calls, Team T, Cache C, class Heads, class Real = typename C::real>
void attend_heads(const T& team, const Calls& calls, C& cache, const StepRules& rules, Heads& heads,
                  const StepScratch<Real>& scratch) {
  const int32_t rows = cache.size(), n_heads = cache.shape().heads;
  const std::span<Real> e{scratch.e, size_t(rows)}, coefficients{scratch.coefficients, size_t(rows)};
  const bool chooses = calls.chooses(), by_head = calls.observes_heads();
  if (chooses) choose_rows(team, calls, static_cast<const C&>(cache), rules.aggregate, heads, scratch);
  // After a one-shot cut no decision depends on scores.
  const bool observed = calls.observes() && rules.decides(cache.token(rows - 1));
  for (int32_t h = 0; h < n_heads; ++h) {
    auto view = heads.view(h);
    view.rule.factor = Real(calls.logit_factor(rows, view.token));
    if (chooses) view.chosen = scratch.chosen + int64_t(h) * rows;
    if (chooses && calls.samples()) view.weights = scratch.weights + int64_t(h) * rows;
    const Normaliser tau = attend(team, view, heads.source(h, view), cache, e, coefficients, heads.writer(h));
    heads.done(h, tau, cache, view.chosen);
    if (!observed) continue;
    if (by_head) {
      team.each(rows, [&](int32_t i) { scratch.by_head[int64_t(h) * rows + i] = double(e[i]); });
      team.each(1, [&](int32_t) { scratch.log_sums[h] = std::log(tau.sum) + tau.shift; });
    } else {
      collect(team, rules.aggregate, h, n_heads, rows, scratch.e, scratch.group);
    }
  }
  if (!observed) return;
  if (by_head)
    calls.observe(team, cache, HeadProbabilities{scratch.by_head, n_heads, rows, rules.aggregate, scratch.log_sums});
  else calls.observe(team, cache, std::span<const double>{scratch.group, size_t(rows)});
}

// Tokens outside a layer's window at token `last` are evicted, for every method (convention C3).
template <Team T, Cache C>
void evict_outside_window(const T& team, C& cache, LayerWindow window, int32_t last) {
  const int32_t first = window.first(last);
  if (!window.any() || cache.size() == 0 || cache.token(0) < 0 || cache.token(0) >= first) return;
  cache.retain(team, [&](int32_t i) { return cache.token(i) < 0 || cache.token(i) >= first; });
}

// The end of the prompt. The cache holds every prompt token that a query can see; the policy then sets the rows'
// scores.
template <class Calls, Team T, Cache C, class Real = typename C::real>
void read_prompt(const T& team, const Calls& calls, C& cache, const Prompt<Real>& prompt, const StepRules& rules) {
  cache.push_run(team, 0, prompt.size());
  evict_outside_window(team, cache, rules.window, prompt.size() - 1);
  calls.read_prompt(team, prompt, cache);
}

// Whether, at the end of a prompt of `prompt` tokens, no selection may evict the row (convention C16).
template <Cache C>
bool is_protected(Protect protect, const C& cache, int32_t row, int32_t prompt) {
  return cache.token(row) < protect.sinks || cache.token(row) >= prompt - protect.recent;
}

// The prompt is cut once (convention C5). With `reweights`, the kept unprotected tokens represent all unprotected
// tokens (option `reweight`); returns whether their weights changed.
template <class Calls, Team T, Cache C, class Real = typename C::real>
bool replay_prompt(const T& team, const Calls& calls, C& cache, const Prompt<Real>& prompt, const StepRules& rules,
                   bool reweights) {
  read_prompt(team, calls, cache, prompt, rules);
  const auto is_open = [&](int32_t i) { return !is_protected(calls.protection(), cache, i, prompt.size()); };
  const int32_t all = reweights ? team.count(cache.size(), is_open) : 0;
  calls.evict(team, cache);
  const int32_t kept = reweights ? team.count(cache.size(), is_open) : 0;
  if (kept == 0 || kept == all) return false;
  const double w = double(all) / kept;
  cache.weigh_rows(team, 0, cache.size(), [&](int32_t i) {
    return is_open(i) ? RowWeights{w, w} : RowWeights{double(cache.num(i)), double(cache.den(i))};
  });
  return true;
}

// Convention C4. `attends` is false for rows that are not measured and that the policy does not observe.
// `heads.opens(cache)` is called with every C_t, the rows that are (or would be) attended to.
template <class Calls, Team T, Cache C, class Heads, class Real = typename C::real>
void replay_step(const T& team, const Calls& calls, C& cache, const Token<Real>& token, const StepRules& rules,
                 Heads& heads, const StepScratch<Real>& scratch, bool attends) {
  const bool decides = rules.decides(token.index);
  calls.append(team, token, cache);
  evict_outside_window(team, cache, rules.window, token.index);
  if constexpr (requires { heads.queries_of_step(); })
    if (decides && calls.observes_queries()) calls.observe_queries(team, heads.queries_of_step());
  if (decides && rules.evict_first) calls.evict(team, cache);
  heads.opens(cache);
  if constexpr (requires { heads.view(0); })  // false if no row can attend
    if (attends) attend_heads(team, calls, cache, rules, heads, scratch);
  if (decides && !rules.evict_first) calls.evict(team, cache);
}

}  // namespace kvreplay
