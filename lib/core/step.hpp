#pragma once
#include "core/attend.hpp"
#include "core/policy.hpp"

// One step of the replay, the same text for a CPU thread and a CUDA block. An evaluator knows where the
// logits come from and where the outputs go; the policy sees neither.

namespace kvreplay {

struct StepRules {
  bool streaming = true;     // the budget is enforced after every step (phase: stream)
  bool evict_first = false;  // order: evict_then_attend
  int32_t window = 0;        // the layer's sliding window; tokens that left it are evicted for everyone
  Aggregate aggregate = Aggregate::sum;
};

// Memory of one step, shared by all caches that one team replays. Extents in elements.
template <class Real>
struct StepScratch {
  Real *e, *coefficients;  // [rows]
  double* group;           // [rows]: probabilities aggregated over the query heads
  double* by_head;         // [heads, rows]: methods that see every query head
  uint8_t* chosen;         // [heads, rows]: query-time methods
};

template <class Real, Team T>
KVR_FN void collect(const T& team, Aggregate how, int32_t head, int32_t heads, int32_t rows, const Real* e,
                    double* group) {
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
  KVR_FN void emit(const T&, const C&, std::span<const typename C::real>) const {}
};

// Which rows a query-time method reads in this step.
template <Policy P, Team T, Cache C, class Heads, class Real = typename C::real>
KVR_FN void choose_rows(const T& team, P& policy, const C& cache, Aggregate how, Heads& heads,
                        const StepScratch<Real>& scratch) {
  const int32_t rows = cache.size(), n_heads = cache.shape().heads;
  if constexpr (ChoosesByMass<P, Real>) {
    const std::span<Real> e{scratch.e, size_t(rows)}, coefficients{scratch.coefficients, size_t(rows)};
    for (int32_t h = 0; h < n_heads; ++h) {
      const auto view = heads.view(h);
      attend(team, view, heads.source(h, view), cache, e, coefficients, NoOutput{});
      team.each(rows, [&](int32_t i) { scratch.by_head[int64_t(h) * rows + i] = double(e[i]); });
    }
    policy.choose(team, cache, HeadProbabilities{scratch.by_head, n_heads, rows, how}, scratch.chosen);
  } else {
    policy.choose(team, cache, heads.queries_of_step(), scratch.chosen);
  }
}

// Attends with every query head of the cache. `heads.view(h)`, `heads.source(h, view)` and `heads.sink(h)`
// say how; `heads.done(h, normaliser, cache, chosen)` takes what came out. `e` then holds the probabilities,
// 0 where a row was not read.
template <Policy P, Team T, Cache C, class Heads, class Real = typename C::real>
KVR_FN void attend_heads(const T& team, P& policy, C& cache, const StepRules& rules, Heads& heads,
                         const StepScratch<Real>& scratch) {
  const int32_t rows = cache.size(), n_heads = cache.shape().heads;
  const std::span<Real> e{scratch.e, size_t(rows)}, coefficients{scratch.coefficients, size_t(rows)};
  bool chooses = false;
  if constexpr (Chooses<P, Real>) {
    chooses = chooses_now(policy);
    if (chooses) choose_rows(team, policy, static_cast<const C&>(cache), rules.aggregate, heads, scratch);
  }
  const bool observed = Observes<P, Real> && rules.streaming;  // after a one-shot cut scores decide nothing
  for (int32_t h = 0; h < n_heads; ++h) {
    auto view = heads.view(h);
    view.rule.factor = Real(logit_factor(policy, rows, view.token));
    if (chooses) view.chosen = scratch.chosen + int64_t(h) * rows;
    const Normaliser tau = attend(team, view, heads.source(h, view), cache, e, coefficients, heads.sink(h));
    heads.done(h, tau, cache, view.chosen);
    if constexpr (ObservesHeads<P, Real>)
      team.each(rows, [&](int32_t i) { scratch.by_head[int64_t(h) * rows + i] = double(e[i]); });
    else if (observed) collect(team, rules.aggregate, h, n_heads, rows, scratch.e, scratch.group);
  }
  if (!observed) return;
  if constexpr (ObservesHeads<P, Real>)
    policy.observe(team, cache, HeadProbabilities{scratch.by_head, n_heads, rows, rules.aggregate});
  else if constexpr (ObservesGroup<P, Real>)
    policy.observe(team, cache, std::span<const double>{scratch.group, size_t(rows)});
}

// A layer's sliding window: what left it by token `last` is evicted, for every method (convention C3).
template <Team T, Cache C>
KVR_FN void leave_window(const T& team, C& cache, int32_t window, int32_t last) {
  const int32_t first = last - window + 1;
  if (window <= 0 || cache.size() == 0 || cache.token(0) < 0 || cache.token(0) >= first) return;
  cache.retain(team, [&](int32_t i) { return cache.token(i) < 0 || cache.token(i) >= first; });
}

// The end of the prompt: the cache holds every prompt token that a query can see, and scores stand on it.
template <Policy P, Team T, Cache C, class Real = typename C::real>
KVR_FN void read_prompt(const T& team, P& policy, C& cache, const Prompt<Real>& prompt,
                        const StepRules& rules) {
  cache.push_run(team, 0, prompt.size());
  leave_window(team, cache, rules.window, prompt.size() - 1);
  if constexpr (ReadsPrompt<P, Real>) policy.read_prompt(team, prompt, cache);
}

// At the end of a prompt of `prompt` tokens: a row that no selection may drop (convention C16).
template <Policy P, Cache C>
KVR_FN bool is_protected(const P& policy, const C& cache, int32_t row, int32_t prompt) {
  if constexpr (ScoresPrompt<P>) {
    const Protect protect = policy.protection();
    return cache.token(row) < protect.sinks || cache.token(row) >= prompt - protect.recent;
  }
  return false;
}

// It is cut once (convention C5). reweights: kept tokens that nothing protects stand for all such tokens
// (axis `reweight`); returns whether they do.
template <Policy P, Team T, Cache C, class Real = typename C::real>
KVR_FN bool replay_prompt(const T& team, P& policy, C& cache, const Prompt<Real>& prompt,
                          const StepRules& rules, bool reweights) {
  const auto is_open = [&](int32_t i) { return !is_protected(policy, cache, i, prompt.size()); };
  read_prompt(team, policy, cache, prompt, rules);
  const int32_t all = reweights ? team.count(cache.size(), is_open) : 0;
  if constexpr (Evicts<P, Real>) policy.evict(team, cache);
  const int32_t kept = reweights ? team.count(cache.size(), is_open) : 0;
  if (kept == 0 || kept == all) return false;
  const double w = double(all) / kept;
  cache.weigh_rows(team, 0, cache.size(), [&](int32_t i) {
    return is_open(i) ? RowWeights{w, w} : RowWeights{double(cache.num(i)), double(cache.den(i))};
  });
  return true;
}

// A step of a policy that looks at no probability: everything but attention.
template <Policy P, Team T, Cache C, class Heads, class Real = typename C::real>
KVR_FN void advance(const T& team, P& policy, C& cache, const Token<Real>& token, const StepRules& rules,
                    Heads& heads) {
  cache.push(team, token);
  if constexpr (Evicts<P, Real>)
    if (rules.streaming && rules.evict_first) policy.evict(team, cache);
  heads.opens(cache);
  if constexpr (Evicts<P, Real>)
    if (rules.streaming && !rules.evict_first) policy.evict(team, cache);
}

// Convention C4. `attends` is false for rows that nobody scores and the policy does not observe;
// `heads.opens(cache)`, if there is one, is shown every C_t.
// Returns |C_t|, the rows that were (or would have been) attended to.
template <Policy P, Team T, Cache C, class Heads, class Real = typename C::real>
KVR_FN int32_t replay_step(const T& team, P& policy, C& cache, const Token<Real>& token,
                           const StepRules& rules, Heads& heads, const StepScratch<Real>& scratch,
                           bool attends) {
  if constexpr (Appends<P, Real>) policy.append(team, token, cache);
  else cache.push(team, token);
  leave_window(team, cache, rules.window, token.index);
  if constexpr (Evicts<P, Real>)
    if (rules.streaming && rules.evict_first) policy.evict(team, cache);
  const int32_t attended = cache.size();
  if constexpr (requires { heads.opens(cache); }) heads.opens(cache);
  if (attends) attend_heads(team, policy, cache, rules, heads, scratch);
  if constexpr (Evicts<P, Real>)
    if (rules.streaming && !rules.evict_first) policy.evict(team, cache);
  return attended;
}

// Evaluates with the rows' own dot products and writes outputs at once: memory does not grow with the
// trace. The strip evaluator of replay/ must agree with it.
template <class Real>
struct Solo {
  const Real* queries;  // [heads, rows of `token`...]: query of (h) starts at queries + h * head_stride
  int64_t head_stride;
  LogitRule<Real> rule;
  Rotation<Real> rotation;
  int32_t token;
  HeadShape shape;
  const Real* sink_logits;  // [heads] or null
  Real* out;                // [heads, v_dim]
  Normaliser* tau;          // [heads] or null

  KVR_FN QueryView<Real> view(int32_t h) const {
    const Real sink = sink_logits == nullptr ? -Real(INFINITY) : sink_logits[h];
    return {{queries + h * head_stride, size_t(shape.dim)},
            rule,
            rotation,
            token,
            nullptr,
            sink,
            shape.block_of(h)};
  }
  KVR_FN OwnDots<Real> source(int32_t, const QueryView<Real>& v) const { return {v}; }
  KVR_FN StepQueries<Real> queries_of_step() const {
    return {queries, head_stride, shape.heads, shape.dim, token, double(rule.scale)};
  }
  KVR_FN DirectOutput<Real> sink(int32_t h) const {
    return {out + int64_t(h) * shape.v_dim, shape.block_of(h)};
  }
  template <Cache C>
  KVR_FN void done(int32_t h, Normaliser t, const C&, const uint8_t*) const {
    if (tau != nullptr) tau[h] = t;
  }
};

}  // namespace kvreplay
