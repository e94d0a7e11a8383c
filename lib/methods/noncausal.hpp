#pragma once
#include "core/selecting.hpp"
#include "methods/parts/chunk_attention.hpp"

namespace kvreplay {

// Non-causal attention, the attention half of Compactor: the attention that a token receives if its neighbours may look
// ahead.
//  1. Chunks of 256 consecutive prompt tokens; inside a chunk softmax over j of <q_i, k_j> for every i, without mask
//     and without scale.  2. Column sums over i, mean over the group.  3. Times ||v_j||.
//  4. Average pool of width 3 (zeros outside, divisor 3).  5. Keep the top B; later tokens are kept.
struct NonCausal : Selecting<> {
  static constexpr MethodInfo info{
      .name = "noncausal",
      .title = "attention without a mask in chunks",
      .source = "Compactor, Chari et al. 2025, its attention scores (as kvpress 0.5.5 runs them)",
      .tier = 2,
      .memory = "B prompt tokens and every later one",
      .deviation =
          "a shorter last chunk is its own chunk. Scores are not standardised over the layer: that would shift "
          "and scale the scores of all heads equally, which changes no order.",
      .streams = false,
      .default_phase = Phase::oneshot,
  };
  static constexpr Hooks hooks{"read_prompt evict layout needs protection state"};
  static constexpr int32_t kChunk = 256;
  std::span<double> state;  // [heads, P] attention that tokens receive, then [kChunk] one row

  static void declare(auto& d) { protect<NonCausal>(d); }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = int64_t(context.shape.heads) * context.prompt_tokens + kChunk, .scores = true};
  }
  PromptNeeds needs(const MethodContext&) const { return {.queries = true}; }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const ChunkAttention attention{state.first(state.size() - kChunk), state.last(kChunk)};
    attention.find(team, prompt, cache, 0, cache.size(),
                   [&](int32_t j, double received) { cache.score(j) = received; });
  }
};

}  // namespace kvreplay
