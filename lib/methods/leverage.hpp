#pragma once
#include "methods/parts/key_leverage.hpp"

namespace kvreplay {

// Leverage scores, from the kvpress library: the half of Compactor (Chari and Van Durme 2025) that looks at keys.
//  1. lev_j of every prompt token (methods/parts/key_leverage.hpp), over all un-rotated keys of the prompt.
//  2. Keep sinks and recent, and the top of lev until B are held; later tokens are kept.
struct LeverageScores : Selecting<> {
  static constexpr MethodInfo info{
      .name = "leverage",
      .title = "keys that stand out among the keys of the prompt",
      .source = "kvpress, LeverageScorePress; Compactor, Chari and Van Durme 2025, section 3",
      .tier = 2,
      .memory = "B prompt tokens and every later one",
      .deviation = "scores are not standardised, which changes no order within a head.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .layer_level = false,
      .selects = true,
  };
  static constexpr Hooks hooks{"read_prompt evict layout needs traits protection rng_arrays state rng larger"};
  double ridge = 1e-2;
  int32_t sketch = kDerived;
  std::span<double> state;  // [P] scores, then KeyLeverage
  Rng rng;
  const LeverageScores* larger = nullptr;

  static void declare(auto& d) {
    KeyLeverage::declare<LeverageScores>(d);
    protect<LeverageScores>(d);
  }
  void resolve(const MethodContext& context) {
    Selecting::resolve(context);
    sketch = KeyLeverage::resolved_sketch(sketch, context.shape.dim);
  }
  void traits(Traits& t) const { t.random = sketch != 0; }
  std::vector<RngArray> rng_arrays(const MethodContext& context) const {
    return KeyLeverage::rng_arrays(context.shape, sketch);
  }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = context.prompt_tokens + KeyLeverage::doubles(context.shape, sketch), .scores = true};
  }
  PromptNeeds needs(const MethodContext&) const { return {.whole = true}; }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const int32_t rows = cache.size();
    if (larger != nullptr) {
      team.each(rows, [&](int32_t i) { state[size_t(i)] = larger->state[size_t(i)]; });
    } else {
      Carver cut{state.data() + prompt.size()};
      KeyLeverage::carve(cut, prompt.shape(), sketch)
          .find(
              team, rng, prompt, rows, ridge, [&](int32_t i) { return cache.token(i); },
              [&](int32_t i, double leverage) { state[size_t(i)] = leverage; });
    }
    team.each(rows, [&](int32_t i) { cache.score(i) = state[size_t(i)]; });
  }
};

}  // namespace kvreplay
