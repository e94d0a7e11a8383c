#pragma once
#include "core/selecting.hpp"
#include "core/vectors.hpp"

namespace kvreplay {

// Non-causal attention, the attention half of Compactor: what a token receives when its neighbours may look
// ahead.
//  1. Chunks of 256 consecutive prompt tokens; inside a chunk softmax over j of <q_i, k_j> for every i,
//  without
//     mask and without scale.  2. Column sums over i, mean over the group.  3. Times ||v_j||.
//  4. Average pool of width 3 (zeros outside, divisor 3).  5. Keep the top B; later tokens are kept.
struct NonCausal : Selecting<> {
  static constexpr MethodInfo info{
      .name = "noncausal",
      .title = "attention without a mask in chunks",
      .source = "Compactor, Chari et al. 2025, its attention scores (as kvpress 0.5.5 runs them)",
      .tier = 2,
      .memory = "B prompt tokens and every later one",
      .deviation =
          "a shorter last chunk is its own chunk. Scores are not standardised over the layer: that shifts "
          "and "
          "scales those of all heads alike, which changes no order.",
      .streams = false,
      .default_phase = Phase::oneshot,
  };
  static constexpr Hooks hooks{"read_prompt evict layout needs protection state"};
  static constexpr int32_t kChunk = 256;
  std::span<double> state;  // [heads, P] what tokens receive, then [kChunk] one row

  static void declare(auto& d) { protect<NonCausal>(d); }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = int64_t(context.shape.heads) * context.prompt_tokens + kChunk, .scores = true};
  }
  PromptNeeds needs(const MethodContext&) const { return {.queries = true}; }

  template <class Real>
  KVR_FN void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const HeadShape shape = prompt.shape();
    const int32_t n = cache.size();
    for (int32_t h = 0; h < shape.heads; ++h) {
      const Prompt<Real> own = prompt.block(shape.block_of(h));
      const std::span<double> received = state.subspan(size_t(h) * size_t(n), size_t(n));
      team.each(n, [&](int32_t j) { received[size_t(j)] = 0; });
      for (int32_t first = 0; first < n; first += kChunk) {
        const int32_t count = n - first < kChunk ? n - first : kChunk;
        const std::span<double> row = state.last(kChunk).first(size_t(count));
        for (int32_t i = first; i < first + count; ++i) {
          const auto query = prompt.query(h, cache.token(i));
          team.each(count, [&](int32_t j) { row[size_t(j)] = wide_dot(query, own.key(cache.token(first + j))); });
          softmax(team, row);
          team.each(count, [&](int32_t j) { received[size_t(first + j)] += row[size_t(j)]; });
        }
      }
      team.each(n, [&](int32_t j) { received[size_t(j)] *= norm(own.value(cache.token(j))); });
    }
    team.each(n, [&](int32_t j) { state[size_t(j)] = aggregate(prompt.how(), &state[size_t(j)], n, shape.heads); });
    team.each(n, [&](int32_t j) {
      const double before = j > 0 ? state[size_t(j) - 1] : 0, after = j + 1 < n ? state[size_t(j) + 1] : 0;
      cache.score(j) = (before + state[size_t(j)] + after) / 3;
    });
  }
};

}  // namespace kvreplay
