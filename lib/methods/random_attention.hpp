#pragma once
#include "methods/parts/buffered.hpp"

namespace kvreplay {

// Random Attention, 2026: the null line of methods that evict while they decode.
//  1. The `recent` newest tokens stay, and with keep_prompt the prompt.
//  2. Once every `buffer` tokens a cut keeps m tokens: of the others those with the smallest fresh random numbers.
// A token survives k cuts with a probability that falls geometrically. There are no weights: kept tokens do not stand
// for evicted ones (`uniform` does that).
struct RandomAttention : Buffered {
  static constexpr MethodInfo info{
      .name = "random_attention",
      .title = "random tokens and the newest, cut once per buffer",
      .source = "Random Attention, arXiv 2609.03430 (random_pp of the release)",
      .tier = 2,
      .memory = "the prompt, B later tokens and up to `buffer` more; no scores",
      .deviation =
          "the budget counts decoded tokens (the release: the prompt too, of which a long one loses its end: write B - "
          "P for its numbers). Cuts come at the end of the prompt and `buffer` steps apart, the release cuts when the "
          "length is a multiple of 64. keep_prompt: false is its ablation `random`.",
      .oneshots = false,
      .selects = true,
  };
  static constexpr Hooks hooks{"evict traits protection rng_arrays rng"};
  int32_t sinks = 0, recent = 64;
  bool keep_prompt = true;
  Rng rng;

  RandomAttention() { buffer = 64; }
  static void declare(auto& d) {
    declare_buffer<RandomAttention>(d);
    d.integer("sinks", &RandomAttention::sinks, {0, kManyTokens}, "first tokens that always stay");
    d.integer("recent", &RandomAttention::recent, {0, kManyTokens},
              "last tokens that always stay, the newest included");
    d.boolean("keep_prompt", &RandomAttention::keep_prompt,
              "whether the prompt stays and the budget is for later tokens");
  }
  void resolve(const MethodContext& context) {
    MethodContext own = context;
    own.serving.keep_prompt = keep_prompt;
    if (keep_prompt && own.serving.prefill_chunk > 0) throw kept_chunks_error();
    Buffered::resolve(own, {.sinks = keep_prompt ? 0 : sinks, .recent = recent});
  }
  void traits(Traits& t) const {
    Buffered::traits(t);
    t.random = true;
  }
  Protect protection() const { return {.sinks = sinks, .recent = recent}; }
  std::vector<RngArray> rng_arrays(const MethodContext& context) const {
    return {{"u uniforms", RngStream::random_cuts, plan.count(context.tokens), context.tokens}};
  }

  void evict(const Team auto& team, Cache auto& cache) {
    if (!is_due(plan, cache)) return;
    const int32_t number = plan.number(cache.token(cache.size() - 1));
    cut(
        team, cache, plan, [&](int32_t) { return protection(); },
        [&](int32_t i) { return -rng.uniform(RngStream::random_cuts, cache.token(i), 0, number); });
  }
};

}  // namespace kvreplay
