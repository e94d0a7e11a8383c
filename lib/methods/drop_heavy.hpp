#pragma once
#include "core/selecting.hpp"
#include "methods/parts/step_scores.hpp"

namespace kvreplay {

// The ablation of H2O that removes the heavy hitters: H = P - B of the P prompt tokens are evicted, once.
//  1. A as in h2o: the attention that a token received from all causal rows of the prompt.
//  2. `heavy`: evict the H largest A; `light`: the H smallest; `random`: H at random, without replacement.
// The claim compares `heavy` with `random` at the same B. `sinks` are protected in all three. Evicting them raises the
// error by itself (streaming_llm), so a run with sinks and one without shows how much of the error is due to them.
struct DropHeavy : Selecting<> {
  static constexpr MethodInfo info{
      .name = "drop_heavy",
      .title = "all but the heavy hitters (ablation)",
      .source = "H2O, Zhang et al. 2023, section 3 and Fig. 2c",
      .tier = 1,
      .memory = "B prompt tokens and every later one",
      .deviation = "the paper reports task accuracy and gives no procedure: one cut after the prompt is our choice.",
      .streams = false,
      .default_phase = Phase::oneshot,
  };
  static constexpr Hooks hooks{"read_prompt evict layout needs traits protection rng_arrays rng"};
  enum class Drop { heavy, random, light };
  Drop drop = Drop::heavy;
  Rng rng;

  static void declare(auto& d) {
    d.choice("drop", &DropHeavy::drop, {"heavy", "random", "light"}, "which P - B prompt tokens are evicted");
    protect<DropHeavy>(d);
  }
  void traits(Traits& t) const { t.random = drop == Drop::random; }
  std::vector<RngArray> rng_arrays(const MethodContext& s) const {
    if (drop != Drop::random) return {};
    return {{"u U uniforms", RngStream::uniform_sampling, 1, s.prompt_tokens}};
  }
  PromptNeeds needs(const MethodContext&) const {
    if (drop == Drop::random) return {};
    return {.column_sums_from = 0};
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& text, BasicCache<Real>& cache) {
    team.each(cache.size(), [&](int32_t i) { cache.score(i) = score(text, cache.token(i)); });
  }

 private:
  // The highest scores stay.
  double score(const auto& text, int32_t token) const {
    if (drop == Drop::random) return -rng.uniform(RngStream::uniform_sampling, token, 0, 0);
    return drop == Drop::heavy ? -text.column_sum(token) : text.column_sum(token);
  }
};

}  // namespace kvreplay
