#pragma once
#include "core/selecting.hpp"
#include "core/vectors.hpp"

namespace kvreplay {

// LagKV, Liang et al. 2025, section 3: keeps tokens that spread widely on the scale set by the chunk after theirs.
//  1. After the sinks, chunks of `lag` tokens; chunk c is scored with chunk c+1 as reference.
//  2. Per channel min and max over the reference; u = (x - min) / (max - min), 0 where they are equal.
//  3. Softmax over the chunk of the standard deviation of u over channels, for keys and for values; their mean.
//  4. Score = rank within the chunk / lag; sinks, the last full chunk and the tail get 1.
//  5. Keep the top B (equal ranks: lower index). A prompt below sinks + 2 lag keeps sinks and the most recent.
struct LagKv : Selecting<4> {
  static constexpr MethodInfo info{
      .name = "lagkv",
      .title = "spread relative to the next chunk",
      .source = "LagKV, Liang et al. 2025, section 3 (as kvpress 0.5.5 runs it)",
      .tier = 2,
      .memory = "B prompt tokens and every later one",
      .deviation =
          "the release does not define the order of equal ranks of different chunks: here the lower index stays.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .selects = true,
      .needs_whole_prompt = true,
  };
  static constexpr Hooks hooks{"read_prompt evict layout protection state"};
  int32_t lag = 128;
  std::span<double> state;  // [4, P or wider]: minima, maxima, deviations, scores of a chunk

  static void declare(auto& d) {
    d.integer("lag", &LagKv::lag, {2, kManyTokens}, "tokens per chunk");
    protect<LagKv>(d);
  }
  Layout layout(const MethodContext& context) const {
    const int32_t widest = context.shape.dim > context.shape.v_dim ? context.shape.dim : context.shape.v_dim;
    return {.state_doubles = 2 * int64_t(widest) + 2 * int64_t(context.prompt_tokens), .scores = true};
  }
  // Sinks score 1, as the last chunk does; they have no further protection.
  Protect protection() const { return {.recent = recent}; }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const int32_t first = held_sinks(cache, sinks), rows = cache.size() - first;
    team.each(cache.size(), [&](int32_t i) { cache.score(i) = 1; });
    if (rows / 2 < lag) {
      team.each(rows, [&](int32_t i) { cache.score(first + i) = double(i) / cache.size(); });
      return;
    }
    const std::span<double> share = state.last(size_t(lag));
    for (int32_t here = first; here + 2 * lag <= cache.size(); here += lag) {
      team.each(lag, [&](int32_t i) { share[size_t(i)] = 0; });
      add_spread(team, here, [&](int32_t row) { return prompt.key(cache.token(row)); });
      add_spread(team, here, [&](int32_t row) { return prompt.value(cache.token(row)); });
      team.each(lag, [&](int32_t i) { cache.score(here + i) = double(rank(share, i)) / lag; });
    }
  }

 private:
  // Steps 2 and 3 for the keys or the values of the chunk that begins at row `here`.
  void add_spread(const Team auto& team, int32_t here, auto vector) {
    const int32_t after = here + lag, width = int32_t(vector(here).size());
    const std::span<double> low = state.first(size_t(width)), range = state.subspan(size_t(width), size_t(width)),
                            share = state.last(size_t(lag)),
                            deviation = state.subspan(state.size() - 2 * size_t(lag), size_t(lag));
    team.each(width, [&](int32_t c) {
      double least = INFINITY, most = -INFINITY;
      for (int32_t row = after; row < after + lag; ++row) {
        const double x = double(vector(row)[size_t(c)]);
        least = x < least ? x : least;
        most = x > most ? x : most;
      }
      low[size_t(c)] = least;
      range[size_t(c)] = most - least;
    });
    team.each(lag, [&](int32_t i) {
      const auto x = vector(here + i);
      const auto u = [&](size_t c) { return range[c] > 0 ? (double(x[c]) - low[c]) / range[c] : 0.0; };
      double mean = 0, squares = 0;
      for (size_t c = 0; c < x.size(); ++c) mean += u(c) / width;
      for (size_t c = 0; c < x.size(); ++c) squares += (u(c) - mean) * (u(c) - mean);
      deviation[size_t(i)] = width > 1 ? std::sqrt(squares / (width - 1)) : 0;
    });
    softmax(team, deviation);
    team.each(lag, [&](int32_t i) { share[size_t(i)] += deviation[size_t(i)] / 2; });
  }
  // Number of entries that come after entry i in C8's order.
  int32_t rank(std::span<const double> x, int32_t i) const {
    int32_t behind = 0;
    for (int32_t j = 0; j < int32_t(x.size()); ++j)
      behind += x[size_t(j)] < x[size_t(i)] || (x[size_t(j)] == x[size_t(i)] && j > i) ? 1 : 0;
    return behind;
  }
};

}  // namespace kvreplay
