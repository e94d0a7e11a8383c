#pragma once
#include <algorithm>

#include "methods/any_scorer.hpp"

namespace kvreplay {

// The best tokens of a scorer, and a reweighted uniform sample of all others.
//  1. h = floor(top_frac B): sinks and the scorer's protected tokens first, then its top tokens.
//  2. B - h of the other prompt tokens, uniformly without replacement (as `uniform`: the smallest u, one u for each of
//     them in order). Each sampled token has weight (number of others)/(B - h) in both sums.
//  3. Later tokens are kept.
// With a scorer that has one set for the layer (tova, variant layer), this method has one set for the layer too.
struct Hybrid {
  static constexpr MethodInfo info{
      .name = "hybrid",
      .title = "top scores + reweighted sample",
      .source = "kvreplay",
      .tier = 3,
      .memory = "B prompt tokens and every later one, one weight",
      .deviation = "if the scorer's window exceeds h, its last tokens stay.",
      .streams = false,
      .default_phase = Phase::oneshot,
  };
  static constexpr Hooks hooks{"read_prompt evict extra_bytes layout needs traits set_options rng_arrays state rng"};
  AnyScorer scorer;
  double top_frac = 0.5;
  int32_t sinks = 4;
  int32_t budget = 0, h = 0;
  std::span<double> state;  // the scorer's state
  Rng rng;

  static void declare(auto& d) {
    d.scorer("scorer", &Hybrid::scorer, "scorer that chooses the top tokens");
    d.real("top_frac", &Hybrid::top_frac, {0, 1}, "share of the budget for top tokens");
    d.integer("sinks", &Hybrid::sinks, {0, kManyTokens}, "first tokens that count as top");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens;
    h = int32_t(top_frac * budget);
    scorer.resolve(context);
    if (sinks > h)
      throw ParameterError("sinks", "sinks " + std::to_string(sinks) + " exceed the " + std::to_string(h) +
                                        " top tokens (top_frac of the budget); give fewer, or a larger top_frac");
  }
  static void set_options(const Hybrid& m, CommonOptions& options) { m.scorer.set_options(options); }
  void traits(Traits& t) const { t.random = true; }
  std::vector<RngArray> rng_arrays(const MethodContext& s) const {
    return {{"u uniforms", RngStream::uniform_sampling, 1, std::max(0, s.prompt_tokens - h)}};
  }
  Layout layout(const MethodContext& s) const {
    return {.state_doubles = scorer.state_doubles(s), .scores = true, .weights = true};
  }
  PromptNeeds needs(const MethodContext& context) const { return scorer.needs(context); }
  void extra_bytes(ExtraBytes& c, const auto& cache) const { c.weight_floats = cache.evictions() > 0 ? 1 : 0; }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    scorer.bind(state);
    scorer.read_prompt(team, prompt, cache);
  }
  void evict(const Team auto& team, Cache auto& cache) {
    if (cache.size() <= budget) return;
    mark_top(team, cache);
    const int32_t others = rank_others(team, cache), sampled = budget - h;
    const auto drawn = [&](int32_t i, bool yes) {
      if (yes) cache.mark(i) |= kDrawn;
    };
    if (sampled > 0)
      choose_top(
          team, cache.size(), sampled,
          [&](int32_t i) { return cache.mark(i) & kTop ? -double(INFINITY) : cache.score(i); }, drawn);
    cache.retain(team, [&](int32_t i) { return cache.mark(i) != 0; });
    const double w = double(others) / sampled;
    cache.weigh_rows(team, 0, cache.size(), [&](int32_t i) {
      return cache.mark(i) == kDrawn ? RowWeights{w, w} : RowWeights{1, 1};
    });
  }

 private:
  static constexpr uint8_t kTop = 1, kDrawn = 2;

  // Step 1.
  void mark_top(const Team auto& team, auto& cache) {
    const Protect p = scorer.protection();
    const int32_t first = held_sinks(cache, p.sinks > sinks ? p.sinks : sinks);
    const int32_t head = first < h ? first : h, last = p.recent < h - head ? p.recent : h - head;
    const int32_t n = cache.size() - head - last;
    team.each(cache.size(), [&](int32_t i) { cache.mark(i) = i < head || i >= head + n ? kTop : 0; });
    choose_top(
        team, n, h - head - last, [&](int32_t i) { return cache.score(head + i); },
        [&](int32_t i, bool yes) { cache.mark(head + i) = yes ? kTop : 0; });
  }
  // Step 2: -u for every other token, in order. Returns how many there are.
  int32_t rank_others(const Team auto& team, auto& cache) {
    for (int32_t i = 0, j = 0; i < cache.size(); ++i)
      if (cache.mark(i) == 0) cache.score(i) = -rng.uniform(RngStream::uniform_sampling, j++);
    return team.count(cache.size(), [&](int32_t i) { return cache.mark(i) == 0; });
  }
};

}  // namespace kvreplay
