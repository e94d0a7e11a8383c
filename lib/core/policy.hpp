#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "core/cache.hpp"
#include "core/hooks.hpp"
#include "core/method_info.hpp"
#include "core/score_rule.hpp"
#include "core/vectors.hpp"

// A method is a policy: a trivially copyable struct (no heap, no kept Token, the same bytes on a GPU) with any of these
// hooks, called in this order:
//
//   observe_prompt(team, t, probabilities)  every prompt row from needs().rows_from on, in order: p over
//                                           tokens 0..t, for each query head
//   read_prompt(team, prompt, cache)        once, with all prompt tokens in the cache: set scores
//   evict(team, cache)                      after the prompt, and after every decode step when streaming
//   append(team, token, cache)              decode; default: cache.push(token)
//   observe_queries(team, queries)          decode, when streaming: the queries of the newest token
//   choose(team, cache, what, chosen)       query-time methods: which rows this step reads; `what` is
//                                           HeadProbabilities (oracles) or StepQueries (all other methods)
//   token_score(cache, row)                 query-time methods: the score by which the last choose() took the row,
//                                           summed over its query heads
//   observe(team, cache, what)              decode: p_t over the rows; `what` is a span aggregated over the
//                                           query heads, or HeadProbabilities
//
//   extra_bytes(charge, cache)              after every step: bytes stored besides rows and scores; takes a
//                                           team as third argument if it has to look at every row
//   spread()                                ErrorBound::spread, where it grows with the tokens
//
// There are also hooks on the host, before and after (methods/README.md lists every one). A policy gets nothing else:
// no trace, no future, no evicted token.

namespace kvreplay {

// Kept sets that were computed elsewhere: list 0 applies after the prompt, list i after step i. A policy that has a
// member `given` keeps exactly these tokens.
struct GivenLists {
  const int32_t* tokens = nullptr;              // ascending in each list
  const double *num = nullptr, *den = nullptr;  // weights of each token; null: all 1
  const int64_t* off = nullptr;                 // list i has tokens off[i] .. off[i + 1]
  int32_t count = 0;                            // number of lists
  bool split = false;                           // some token counts in one sum alone

  bool weighted() const { return num != nullptr; }
  // Index into `tokens` if list i holds the token; else negative.
  int64_t find(int32_t i, int32_t token) const {
    int64_t low = off[i], high = off[i + 1];
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (tokens[middle] < token) low = middle + 1;
      else high = middle;
    }
    return low < off[i + 1] && tokens[low] == token ? low : -1;
  }
  RowWeights weights(int64_t at) const { return {num[at], den[at]}; }
  // Evicts the rows of a cache that the list does not hold.
  void keep(const Team auto& team, Cache auto& cache, int32_t list) const {
    team.each(cache.size(), [&](int32_t i) { cache.mark(i) = find(list, cache.token(i)) >= 0 ? 1 : 0; });
    cache.retain(team, [&](int32_t i) { return cache.mark(i) != 0; });
  }
};

// Probabilities of this step's rows, one query head after the other.
struct HeadProbabilities {
  const double* values;  // [heads, rows]
  int32_t heads, rows;
  Aggregate how = Aggregate::sum;
  const double* log_sums = nullptr;  // [heads] logarithms of the denominators, where a step observes
  int32_t seen = -1;                 // rows that are held, where `values` also has evicted ones (as 0); -1: all are
  double operator()(int32_t head, int32_t row) const { return values[int64_t(head) * rows + row]; }
  // The exponent of a probability above 0. It includes soft cap, position, temperature and the logarithm of the row's
  // weight.
  double logit(int32_t head, int32_t row) const { return std::log((*this)(head, row)) + log_sums[head]; }
  // Aggregated over the query heads (gqa.agg).
  double group(int32_t row) const { return aggregate(how, values + row, rows, heads); }
  double mean(int32_t row) const { return aggregate(Aggregate::mean, values + row, rows, heads); }
};

// Softmax of a policy's logits logit(head, row) over the rows of each head of p. `to`: [heads, rows].
template <Team T, class F>
HeadProbabilities softmax(const T& team, const HeadProbabilities& p, double* to, F logit) {
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
  int32_t position;  // position of the token, by which its query is rotated
  double scale;
  double softcap = 0;      // the layer's; 0: none
  int32_t first_head = 0;  // number of the first query among those of its kv head, or of the layer
  std::span<const Real> operator()(int32_t head) const { return {values + head * head_stride, size_t(dim)}; }
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
// Rows that are read also get weights: `weights` [heads, rows] apply to both sums. Those of rows that are estimated are
// their logits.
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
// The policy is given lists of the tokens that it keeps.
template <class P>
concept HasGiven = requires(P p, GivenLists lists) {
  p.given = lists;
};
// The engine may pass a policy the same instance at a larger budget that has already cut the prompt with the same
// draws, so that common decisions need not be computed again. `larger` is valid while the prompt is read and cut
// (read_prompt(), evict()), or null.
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
// Prompt rows that no selection may evict. A policy with this hook leaves its prompt scores on the rows, so that
// allocators, reweighting and wrappers can use them.
template <class P>
concept ScoresPrompt = requires(const P p) {
  { p.protection() } -> std::same_as<Protect>;
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
