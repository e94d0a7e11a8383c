#pragma once
#include "core/share.hpp"
#include "methods/parts/chunk_attention.hpp"
#include "methods/parts/key_leverage.hpp"

namespace kvreplay {

// Compactor, Chari and Van Durme 2025: keeps keys unlike the others, and tokens that their neighbours attend to. For
// the tokens between `sinks` and `recent`:
//  1. lev_j = leverage of the token's key (methods/parts/key_leverage.hpp).
//  2. att_j = non-causal attention (methods/parts/chunk_attention.hpp), chunks counted from the first of these tokens.
//  3. Divide both by their standard deviations among the layer's tokens (divisor n - 1, at least 1e-6). Subtracting
//     means would shift all scores equally.
//  4. score = blend * lev + att: keep sinks and recent, and the top of the others; later tokens are kept.
// Heads exchange numbers before the replay (hook `hear`): a single head knows lev and att, but not the layer's
// deviations.
struct Compactor : Selecting<8, 4> {
  static constexpr MethodInfo info{
      .name = "compactor",
      .title = "leverage of keys and attention without a mask",
      .source = "Compactor, Chari and Van Durme 2025 (as kvpress runs it)",
      .tier = 2,
      .memory = "B prompt tokens and every later one",
      .deviation =
          "blend is kvpress's fallback instead of the share of removed tokens; a shorter last chunk is its own chunk.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .layer_level = false,
      .shared_over = SharedOver::layer,
  };
  static constexpr Hooks hooks{
      "read_prompt evict layout needs traits protection head_scores hear rng_arrays state rng larger"};
  static constexpr double kLeastSpread = 1e-6;
  double blend = 0.35, ridge = 1e-2;
  int32_t chunk = 256, sketch = kDerived;
  int32_t tokens = 0, rows = 0;                      // prompt length; rows that have lev and att
  double leverage_spread = 1, attention_spread = 1;  // standard deviations over the layer, set by hear()
  std::span<double> state;                           // lev [P], att [P], then Work
  Rng rng;
  const Compactor* larger = nullptr;

  static void declare(auto& d) {
    d.real("blend", &Compactor::blend, {0, 1e9}, "weight of the leverage relative to the attention");
    d.integer("chunk", &Compactor::chunk, {2, kManyTokens}, "tokens that attend to each other");
    KeyLeverage::declare<Compactor>(d);
    protect<Compactor>(d);
  }
  void resolve(const MethodContext& context) {
    Selecting::resolve(context);
    tokens = context.prompt_tokens;
    sketch = KeyLeverage::resolved_sketch(sketch, context.shape.dim);
  }
  void traits(Traits& t) const { t.random = sketch != 0; }
  std::vector<RngArray> rng_arrays(const MethodContext& context) const {
    return KeyLeverage::rng_arrays(context.shape, sketch);
  }
  Layout layout(const MethodContext& context) const {
    const int64_t of_tokens = tokens * (2 + int64_t(context.shape.heads)) + chunk_rows();
    return {.state_doubles = of_tokens + KeyLeverage::doubles(context.shape, sketch), .scores = true};
  }
  PromptNeeds needs(const MethodContext&) const { return {.queries = true}; }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const int32_t first = held_sinks(cache, sinks);
    rows = cache.size() - first > recent ? cache.size() - first - recent : 0;
    if (rows == 0) return;
    const Work w = carve(prompt.shape());
    if (larger != nullptr && larger->rows == rows) {
      team.each(2 * tokens, [&](int32_t i) { state[size_t(i)] = larger->state[size_t(i)]; });
    } else {
      w.keys.find(
          team, rng, prompt, rows, ridge, [&](int32_t i) { return cache.token(first + i); },
          [&](int32_t i, double leverage) { w.lev[size_t(i)] = leverage; });
      w.attention.find(team, prompt, cache, first, rows, [&](int32_t i, double x) { w.att[size_t(i)] = x; });
    }
    team.each(rows, [&](int32_t i) {
      cache.score(first + i) = blend * (w.lev[size_t(i)] / leverage_spread) + w.att[size_t(i)] / attention_spread;
    });
  }

  // Number of rows; then for lev and for att the mean and the squared deviations from it.
  void head_scores(std::vector<double>& says) const {
    says = {double(rows)};
    for (const double* x : {state.data(), state.data() + tokens}) add_spread(says, x, rows);
  }
  void hear(const std::vector<HeadScores>& heads) {
    leverage_spread = std::max(deviation_over(heads, 0, 1), kLeastSpread);
    attention_spread = std::max(deviation_over(heads, 0, 3), kLeastSpread);
  }

 private:
  struct Work {
    std::span<double> lev, att;
    ChunkAttention attention;
    KeyLeverage keys;
  };
  int32_t chunk_rows() const { return chunk < tokens ? chunk : tokens; }
  Work carve(const HeadShape& s) const {
    Carver cut{state.data()};
    const std::span<double> lev = cut(tokens), att = cut(tokens);
    const ChunkAttention attention{cut(int64_t(s.heads) * tokens), cut(chunk_rows())};
    return {lev, att, attention, KeyLeverage::carve(cut, s, sketch)};
  }
};

}  // namespace kvreplay
