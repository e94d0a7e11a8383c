#pragma once
#include <span>
#include <type_traits>

#include "core/method_info.hpp"
#include "core/philox.hpp"
#include "core/select.hpp"

// What a method is. A policy is a trivially copyable struct (no heap, no kept Token, the same bytes on a
// GPU) with any of these hooks, called in this order:
//
//   read_prompt(team, prompt, cache)        once, with all prompt tokens in the cache: set scores
//   evict(team, cache)                      after the prompt, and after every decode step when streaming
//   append(team, token, cache)              decode; default: cache.push(token)
//   choose(team, cache, probabilities, chosen)  query-time methods: which rows are read in this step
//   observe(team, cache, probabilities)     decode: p_t over the rows, aggregated over the query heads
//
// and, on the host: resolve(scene), layout(scene), needs(scene), and a member `state` or `draws` that the
// engine binds. Nothing else reaches a policy: no trace, no future, no token that left the cache.

namespace kvreplay {

// Probabilities of this step's rows, one query head after the other.
struct HeadProbabilities {
  const double* values;  // [heads, rows]
  int32_t heads, rows;
  KVR_FN double operator()(int32_t head, int32_t row) const { return values[int64_t(head) * rows + row]; }
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
concept Chooses = requires(P p, SerialTeam team, const BasicCache<Real>& cache, HeadProbabilities q,
                           uint8_t* chosen) {
  p.choose(team, cache, q, chosen);
};
template <class P, class Real>
concept Observes = requires(P p, SerialTeam team, BasicCache<Real>& cache, std::span<const double> q) {
  p.observe(team, cache, q);
};
template <class P>
concept HasState = requires(P p, std::span<double> state) {
  p.state = state;
};
template <class P>
concept HasDraws = requires(P p, Draws draws) {
  p.draws = draws;
};
template <class P>
concept HasLayout = requires(const P p, Scene scene) {
  { p.layout(scene) } -> std::same_as<Layout>;
};
template <class P>
concept HasNeeds = requires(const P p, Scene scene) {
  { p.needs(scene) } -> std::same_as<PromptNeeds>;
};

// g++ 12 needs both traits: a struct that holds a Token is still "trivially copyable" for it.
template <class P>
concept Policy = std::is_trivially_copyable_v<P> && std::is_trivially_copy_constructible_v<P> &&
    requires(P p, Scene scene) {
  { P::info } -> std::convertible_to<MethodInfo>;
  p.resolve(scene);
};

}  // namespace kvreplay
