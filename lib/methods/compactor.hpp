#pragma once
#include "core/rotary.hpp"
#include "core/selecting.hpp"
#include "core/share.hpp"
#include "methods/parts/chunk_attention.hpp"
#include "methods/parts/leverage.hpp"
#include "methods/parts/sketch.hpp"

namespace kvreplay {

// Compactor, Chari and Van Durme 2025: keeps keys unlike the others, and tokens that their neighbours attend to. For
// the tokens between `sinks` and `recent`:
//  1. X = un-rotated keys minus their mean; times Phi [d, sketch], Gaussian / sqrt(sketch), unless sketch is 0.
//  2. lev_j = max(0, x_j^T (X^T X + ridge I)^-1 x_j).
//  3. att_j = non-causal attention (methods/parts/chunk_attention.hpp), chunks counted from the first of these tokens.
//  4. Divide both by their standard deviations among the layer's tokens (divisor n - 1, at least 1e-6). Subtracting
//     means would shift all scores equally.
//  5. score = blend * lev + att: keep sinks and recent, and the top of the others; later tokens are kept.
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
    d.integer("sketch", &Compactor::sketch, {0, 1 << 20}, "columns of the random projection of keys; 0: none",
              "48, or the channels of a key where they are fewer");
    d.real("ridge", &Compactor::ridge, {1e-300, 1e300}, "added to the diagonal of X^T X");
    protect<Compactor>(d);
  }
  void resolve(const MethodContext& context) {
    Selecting::resolve(context);
    tokens = context.prompt_tokens;
    const int32_t channels = context.shape.dim;
    if (sketch == kDerived) sketch = std::min(48, channels);
    if (sketch > channels)
      throw ParameterError("sketch", "sketch " + std::to_string(sketch) + " exceeds the " + std::to_string(channels) +
                                         " channels of a key; take fewer columns, or 0 for the keys themselves");
  }
  void traits(Traits& t) const { t.random = sketch != 0; }
  std::vector<RngArray> rng_arrays(const MethodContext& context) const {
    if (sketch == 0) return {};
    return {{"U uniforms", RngStream::sketch_matrix, 1, (int64_t(context.shape.dim) * sketch + 1) / 2 * 2}};
  }
  Layout layout(const MethodContext& context) const {
    const int64_t d = context.shape.dim, of_tokens = tokens * (2 + int64_t(context.shape.heads)) + chunk_rows();
    return {.state_doubles = of_tokens + (2 + sketch) * d + Leverage::doubles(columns(context.shape)), .scores = true};
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
      find_leverage(team, prompt, w, [&](int32_t i) { return cache.token(first + i); });
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
    std::span<double> mean, key, phi;
    Leverage keys;
  };
  int32_t columns(const HeadShape& s) const { return sketch > 0 ? sketch : s.dim; }
  int32_t chunk_rows() const { return chunk < tokens ? chunk : tokens; }
  Work carve(const HeadShape& s) const {
    const int64_t d = s.dim;
    Carver cut{state.data()};
    const std::span<double> lev = cut(tokens), att = cut(tokens);
    const ChunkAttention attention{cut(int64_t(s.heads) * tokens), cut(chunk_rows())};
    return {lev, att, attention, cut(d), cut(d), cut(d * sketch), Leverage::carve(cut, columns(s))};
  }
  // Steps 1 and 2 for the tokens token(0) .. token(rows - 1).
  template <class Real>
  void find_leverage(const Team auto& team, const Prompt<Real>& prompt, const Work& w, auto token) const {
    const int32_t d = prompt.shape().dim;
    const auto read_key = [&](int32_t i) {
      unrotate(team, prompt.rope(), prompt.position(token(i)), prompt.key(token(i)), w.key);
    };
    team.each(d * sketch, [&](int32_t i) {
      w.phi[size_t(i)] = gaussian(rng, RngStream::sketch_matrix, i) / std::sqrt(double(sketch));
    });
    team.each(d, [&](int32_t c) { w.mean[size_t(c)] = 0; });
    for (int32_t i = 0; i < rows; ++i) {
      read_key(i);
      team.each(d, [&](int32_t c) { w.mean[size_t(c)] += w.key[size_t(c)] / rows; });
    }
    const auto take = [&](int32_t i) { read_key(i), project(team, w); };
    w.keys.find(
        team, rows, ridge, [](int32_t) { return 1.0; }, take,
        [&](int32_t i, double leverage) { w.lev[size_t(i)] = leverage > 0 ? leverage : 0; });
  }
  // Computes a row of X from its key.
  void project(const Team auto& team, const Work& w) const {
    const int32_t d = int32_t(w.key.size());
    const std::span<double> centred = sketch > 0 ? w.key : w.keys.point;
    team.each(d, [&](int32_t c) { centred[size_t(c)] = w.key[size_t(c)] - w.mean[size_t(c)]; });
    if (sketch == 0) return;
    weighted_sum(
        d, [&](int32_t c) { return centred[size_t(c)]; },
        [&](int32_t c) { return w.phi.subspan(size_t(c) * size_t(sketch), size_t(sketch)); }, w.keys.point);
  }
};

}  // namespace kvreplay
