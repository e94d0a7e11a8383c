#pragma once
#include "core/selecting.hpp"

namespace kvreplay {

// Keeps the prompt tokens with the largest values among those that got attention. A made-up method.
//  1. a[j] = attention that token j gets from the last `rows` rows of the prompt.
//  2. The score of token j is a[j] times the norm of its value.  3. The best B stay.
struct LoudValues : Selecting<4, 0> {  // `sinks` (4) and `recent` (0): declared, checked and protected
  static constexpr MethodInfo info{
      .name = "loud_values",
      .title = "attention times the norm of the value",
      .source = "this page",
      .tier = 3,
      .memory = "B prompt tokens and every later one",
      .deviation = "",
      .streams = false,
      .default_phase = Phase::oneshot,
      .layer_level = false,  // it reads the value of one kv head
  };
  static constexpr Hooks hooks{"layout needs read_prompt evict protection state"};  // every hook that it has
  int32_t rows = 32;        // a parameter: the initialiser is its default
  std::span<double> state;  // [P] norms

  static void declare(auto& d) {
    d.integer("rows", &LoudValues::rows, {1, kManyTokens}, "last prompt rows that vote");
    protect<LoudValues>(d);
  }
  Layout layout(const MethodContext& context) const { return {.state_doubles = context.prompt_tokens, .scores = true}; }
  PromptNeeds needs(const MethodContext& context) const {
    return {.column_sums_from = std::max(0, context.prompt_tokens - rows)};
  }
  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    team.each(cache.size(), [&](int32_t i) { state[size_t(i)] = norm(prompt.value(cache.token(i))); });
    team.each(cache.size(), [&](int32_t i) { cache.score(i) = prompt.column_sum(cache.token(i)) * state[size_t(i)]; });
  }
  void evict(const Team auto& team, Cache auto& cache) { Selecting::evict(team, cache); }
};

}  // namespace kvreplay
