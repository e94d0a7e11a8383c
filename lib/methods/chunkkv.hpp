#pragma once
#include "methods/any_scorer.hpp"

namespace kvreplay {

// ChunkKV, Liu et al. 2025: whole chunks of consecutive tokens, with one selection for all kv heads of a layer.
//  1. Sum the scores over the kv heads; protected tokens get the maximum of the others plus 1. Take the mean over
//     consecutive chunks (a partial last chunk is a chunk).
//  2. Keep the max(1, floor(chunks B / P)) best chunks, with B before rounding down: with fraction_kept f that is
//     floor(chunks f).
struct ChunkKv : Selecting<> {
  static constexpr MethodInfo info{
      .name = "chunkkv",
      .title = "whole chunks, one selection for all kv heads of a layer",
      .source = "ChunkKV, Liu et al. 2025, Algorithm 1",
      .tier = 2,
      .memory = "the tokens of the kept chunks (extras: realised_tokens) and every later one",
      .deviation = "the realised size is a number of whole chunks, not B",
      .streams = false,
      .default_phase = Phase::oneshot,
      .exact_budget = false,
  };
  static constexpr Hooks hooks{"read_prompt evict report layout needs protection set_options state"};
  AnyScorer scorer;
  int32_t chunk = 20;
  int32_t realised = 0;
  double asked = 0;         // B before rounding down
  std::span<double> state;  // [P] scores summed over the kv heads, then the scorer's

  static void declare(auto& d) {
    d.integer("chunk", &ChunkKv::chunk, {1, kManyTokens}, "tokens per chunk");
    d.scorer("scorer", &ChunkKv::scorer, "one-shot scores, {name: ..., its parameters}");
    protect<ChunkKv>(d);
  }
  void resolve(const MethodContext& context) {
    Selecting::resolve(context);
    const Budget& b = context.budget;
    asked =
        std::floor(b.requested_tokens) == b.tokens ? b.requested_tokens : b.tokens;  // an allocator shares whole tokens
    scorer.resolve(context);
  }
  static void set_options(const ChunkKv& m, CommonOptions& options) {
    m.scorer.set_options(options);
    options.gqa_level = GqaLevel::layer;
  }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = context.prompt_tokens + scorer.state_doubles(context), .scores = true};
  }
  PromptNeeds needs(const MethodContext& context) const { return scorer.needs(context); }
  Protect protection() const { return both({sinks, recent}, scorer.protection()); }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const int32_t n = cache.size();
    double* total = state.data();
    scorer.bind(state.subspan(size_t(prompt.size())));
    for (int32_t b = 0; b < prompt.shape().blocks; ++b) {
      scorer.read_prompt(team, prompt.block(b), cache);
      team.each(n, [&](int32_t i) { total[i] = (b > 0 ? total[i] : 0) + cache.score(i); });
    }
    const Protect safe = protection();
    const int32_t first = held_sinks(cache, safe.sinks), last = n - safe.recent;
    const Scored most = team.largest(last - first, [&](int32_t i) { return total[first + i]; });
    team.each(n, [&](int32_t i) { total[i] = i < first || i >= last ? most.score + 1 : total[i]; });
    team.each(n, [&](int32_t i) { cache.score(i) = mean_of_chunk(total, i / chunk * chunk, n); });
  }
  void evict(const Team auto& team, Cache auto& cache) {
    const int32_t n = cache.size(), chunks = (n + chunk - 1) / chunk;
    realised = n;
    if (n <= budget) return;
    constexpr double kRounding = 1e-9;  // f n chunks / n may be slightly below a whole number f chunks
    const int32_t best = int32_t(chunks * asked / n + kRounding);
    choose_top(
        team, chunks, best > 1 ? best : 1, [&](int32_t c) { return cache.score(c * chunk); },
        [&](int32_t c, bool yes) {
          for (int32_t i = c * chunk; i < n && i < (c + 1) * chunk; ++i) cache.mark(i) = yes ? 1 : 0;
        });
    cache.retain(team, [&](int32_t i) { return cache.mark(i) != 0; });
    realised = cache.size();
  }
  void report(auto& extras, const auto&) const { extras["realised_tokens"] = realised; }

 private:
  // Adds differences to the first score, so that the mean of equal scores is exactly that score, whatever their number:
  // chunks of protected tokens tie.
  double mean_of_chunk(const double* scores, int32_t begin, int32_t n) const {
    const int32_t end = begin + chunk < n ? begin + chunk : n;
    double above = 0;
    for (int32_t i = begin; i < end; ++i) above += scores[i] - scores[begin];
    return scores[begin] + above / (end - begin);
  }
};

}  // namespace kvreplay
