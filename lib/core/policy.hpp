#pragma once
#include <cmath>
#include <optional>
#include <span>
#include <type_traits>

#include "core/given_lists.hpp"
#include "core/hooks.hpp"
#include "core/method_info.hpp"
#include "core/philox.hpp"
#include "core/select.hpp"
#include "core/vectors.hpp"

// What a method is. A policy is a trivially copyable struct (no heap, no kept Token, the same bytes on a
// GPU) with any of these hooks, called in this order:
//
//   observe_prompt(team, t, probabilities)  every prompt row from needs().rows_from on, in order: p over
//                                           tokens 0..t, for each query head
//   read_prompt(team, prompt, cache)        once, with all prompt tokens in the cache: set scores
//   evict(team, cache)                      after the prompt, and after every decode step when streaming
//   append(team, token, cache)              decode; default: cache.push(token)
//   observe_queries(team, queries)          decode, when streaming: the queries of the token that has just come
//   choose(team, cache, what, chosen)       query-time methods: which rows are read in this step; `what` is
//                                           HeadProbabilities (oracles) or StepQueries (everyone else)
//   observe(team, cache, what)              decode: p_t over the rows; `what` is a span aggregated over the
//                                           query heads, or HeadProbabilities
//
//   extra_bytes(charge, cache)              after every step: what is stored besides rows and scores; with a
//                                           team as third argument where that takes a look at every row
//   spread()                                ErrorBound::spread, where it grows with the tokens
//
// and hooks on the host, before and after (methods/README.md lists every one). Nothing else reaches a policy:
// no trace, no future, no token that left the cache.
//
// Every thread of a team runs these hooks with a copy of the policy of its own, and all copies stay alike:
// what decides a branch is a number that every thread has. What changes a cache waits until everybody has
// seen what stood there, and returns when everybody can see what stands there now.

namespace kvreplay {

// Probabilities of this step's rows, one query head after the other.
struct HeadProbabilities {
  const double* values;  // [heads, rows]
  int32_t heads, rows;
  Aggregate how = Aggregate::sum;
  const double* log_sums = nullptr;  // [heads] logarithms of the denominators, where a step observes
  KVR_FN double operator()(int32_t head, int32_t row) const { return values[int64_t(head) * rows + row]; }
  // What stands in the exponent of a probability above 0: soft cap, position and temperature are in it, and the
  // logarithm of the row's weight.
  KVR_FN double logit(int32_t head, int32_t row) const { return std::log((*this)(head, row)) + log_sums[head]; }
  // Of the query heads together (gqa.agg).
  KVR_FN double group(int32_t row) const { return aggregate(how, values + row, rows, heads); }
  KVR_FN double mean(int32_t row) const { return aggregate(Aggregate::mean, values + row, rows, heads); }
};

// Softmax of a policy's own logits logit(head, row) over the rows of each head of p. `to`: [heads, rows].
template <Team T, class F>
KVR_FN HeadProbabilities softmax(const T& team, const HeadProbabilities& p, double* to, F logit) {
  for (int32_t h = 0; h < p.heads; ++h) {
    const std::span<double> x{to + int64_t(h) * p.rows, size_t(p.rows)};
    team.each(p.rows, [&](int32_t i) { x[size_t(i)] = logit(h, i); });
    softmax(team, x);
  }
  return {to, p.heads, p.rows, p.how};
}

// This step's queries.
template <class Real>
struct StepQueries {
  const Real* values;  // [heads, *, dim]
  int64_t head_stride;
  int32_t heads, dim, token;
  int32_t position;  // of the token, by which its query is rotated
  double scale;
  KVR_FN std::span<const Real> operator()(int32_t head) const { return {values + head * head_stride, size_t(dim)}; }
};

template <class P>
concept ObservesPrompt = requires(P p, SerialTeam team, HeadProbabilities q) {
  p.observe_prompt(team, 0, q);
};
template <class P, class Real>
concept ReadsPrompt = requires(P p, SerialTeam team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
  p.read_prompt(team, prompt, cache);
};
template <class P, class Real>
concept Evicts = requires(P p, SerialTeam team, BasicCache<Real>& cache) {
  p.evict(team, cache);
};
template <class P, class Real>
concept Appends = requires(P p, SerialTeam team, const Token<Real>& token, BasicCache<Real>& cache) {
  p.append(team, token, cache);
};
template <class P, class Real>
concept ObservesQueries = requires(P p, SerialTeam team, const StepQueries<Real>& q) {
  p.observe_queries(team, q);
};
template <class P, class Real>
concept ChoosesByMass = requires(P p, SerialTeam team, const BasicCache<Real>& cache, HeadProbabilities q,
                                 uint8_t* chosen) {
  p.choose(team, cache, q, chosen);
};
template <class P, class Real>
concept ChoosesByQuery = requires(P p, SerialTeam team, const BasicCache<Real>& cache, const StepQueries<Real>& q,
                                  uint8_t* chosen) {
  p.choose(team, cache, q, chosen);
};
// What is read is weighed, too: `weights` of both sums, [heads, rows].
template <class P, class Real>
concept SamplesByQuery = requires(P p, SerialTeam team, const BasicCache<Real>& cache, const StepQueries<Real>& q,
                                  uint8_t* chosen, double* weights) {
  p.choose(team, cache, q, chosen, weights);
};
template <class P, class Real>
concept Chooses = ChoosesByMass<P, Real> || ChoosesByQuery<P, Real> || SamplesByQuery<P, Real>;
template <class P, class Real>
concept ObservesGroup = requires(P p, SerialTeam team, BasicCache<Real>& cache, std::span<const double> q) {
  p.observe(team, cache, q);
};
template <class P, class Real>
concept ObservesHeads = requires(P p, SerialTeam team, BasicCache<Real>& cache, HeadProbabilities q) {
  p.observe(team, cache, q);
};
template <class P, class Real>
concept Observes = ObservesGroup<P, Real> || ObservesHeads<P, Real>;
template <class P>
concept HasState = requires(P p, std::span<double> state) {
  p.state = state;
};
template <class P>
concept HasRng = requires(P p, Rng rng) {
  p.rng = rng;
};
// The policy is told what it keeps.
template <class P>
concept HasGiven = requires(P p, GivenLists lists) {
  p.given = lists;
};
// The engine may show a policy the same instance at a larger budget that has cut the prompt already, with the
// same draws: what both decide alike need not be found again. `larger` holds while the prompt is read and cut
// (read_prompt(), evict()), or is null.
template <class P>
concept SharesSelection = requires(P p, const P* other) {
  p.larger = other;
};
template <class P>
concept HasLayout = requires(const P p, MethodContext context) {
  { p.layout(context) } -> std::same_as<Layout>;
};
template <class P>
concept HasNeeds = requires(const P p, MethodContext context) {
  { p.needs(context) } -> std::same_as<PromptNeeds>;
};
// What of the prompt no selection may drop; a policy that has it leaves its prompt scores on the rows, so
// that allocators, reweighting and wrappers can use them.
template <class P>
concept ScoresPrompt = requires(const P p) {
  { p.protection() } -> std::same_as<Protect>;
};
// A variant that chooses is a run-time matter for some methods.
template <class P>
KVR_FN bool chooses_now(const P& policy) {
  if constexpr (requires { policy.chooses(); }) return policy.chooses();
  else return true;
}

// The rule of methods whose rows add up what the heads give them and which then drop the lowest
// unprotected row: score = carry * score + p, with p summed (or averaged) over the group. The engine may run
// it without the policy (evaluate/score_slots); the policy's text stays the definition.
struct ScoreRule {
  double carry;  // 1: accumulated; 0: the present row alone
  Protect protect;
  int32_t budget;
};
template <class P>
concept HasScoreRule = requires(const P p) {
  { p.score_rule() } -> std::same_as<std::optional<ScoreRule>>;
};

// g++ 12 needs both traits: a struct that holds a Token is still "trivially copyable" for it.
template <class P>
concept Policy = std::is_trivially_copyable_v<P> && std::is_trivially_copy_constructible_v<P> &&
    requires(P p, MethodContext context) {
  { P::info } -> std::convertible_to<MethodInfo>;
  p.resolve(context);
};

}  // namespace kvreplay
