#pragma once
#include "methods/parts/step_scores.hpp"

namespace kvreplay {

// The best possible attention-mass ranking, H2O Table 8 "Top-K": at every step the tokens that this step's queries
// attend to most, from the full cache.
//  1. Exact probabilities of the step, summed over the group.  2. Read the B + extra largest; the newest token has no
//     privilege.  3. Renormalise over them.
// It maximises mass, not accuracy: in diffuse heads a plain window can have a smaller error.
// Variants: topk_plus_current reads the top floor(f * t) of the t earlier tokens, and the newest (FlexGen's sparse
// attention, which does not renormalise). with_h2o reads floor(B/2) resident heavy hitters, chosen by h2o's A without
// recents, the newest, and the top B - floor(B/2) of the step from the full cache.
struct TopkOracle {
  static constexpr MethodInfo info{
      .name = "topk_oracle",
      .title = "top-k of the full cache (oracle)",
      .source = "H2O, Zhang et al. 2023, Table 8",
      .tier = 1,
      .memory = "the full cache; the budget bounds what is read",
      .deviation = "with_h2o is our definition: the paper has none.",
      .oneshots = false,
      .any_positions = false,
      .implied_layout = true,
      .reads_full_cache = true,
  };
  static constexpr Hooks hooks{"read_prompt evict choose observe layout needs traits"};
  enum class Variant { plain, topk_plus_current, with_h2o };
  Variant variant = Variant::plain;
  int32_t extra = 1;
  bool per_head = false, renormalise = true;
  double f = kUnset;
  int32_t budget = 0, heavy = 0, most = 0;

  static void declare(auto& d) {
    d.choice("variant", &TopkOracle::variant, {"default", "topk_plus_current", "with_h2o"}, "which tokens are read");
    d.integer("extra", &TopkOracle::extra, {0, 1},
              "1: read B + 1 tokens, as many as a streaming method attends to (variant default)");
    d.boolean("per_head", &TopkOracle::per_head, "every query head reads its own tokens");
    d.real("f", &TopkOracle::f, {0, 1}, "share of the earlier tokens that topk_plus_current reads", "B / P");
    d.boolean("renormalise", &TopkOracle::renormalise,
              "false: topk_plus_current leaves the probabilities as they are in the whole row");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens;
    if (f == kUnset) f = budget < context.prompt_tokens ? double(budget) / context.prompt_tokens : 1;
    if (!renormalise && variant != Variant::topk_plus_current)
      throw ParameterError("renormalise", "only variant topk_plus_current supports renormalise: false; leave it out");
    if (variant == Variant::with_h2o) heavy = budget < context.tokens ? budget / 2 : budget;
    most = variant == Variant::topk_plus_current ? int32_t(f * context.tokens) + 1 : budget + 1;
  }
  void traits(Traits& t) const {
    t.max_rows_read = most;
    t.observes = variant == Variant::with_h2o;
    t.heads_differ = per_head;
  }
  Layout layout(const MethodContext&) const { return {.scores = variant == Variant::with_h2o}; }
  PromptNeeds needs(const MethodContext&) const {
    return {.column_sums_from = variant == Variant::with_h2o ? 0 : PromptNeeds::kNoRows};
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    if (variant == Variant::with_h2o) accumulate_prompt(team, prompt, cache);
  }
  void choose(const Team auto& team, const Cache auto& cache, HeadProbabilities x, uint8_t* chosen) {
    for (int32_t h = 0; h < (per_head ? x.heads : 1); ++h)
      read(
          team, cache, [&](int32_t i) { return per_head ? x(h, i) : x.group(i); }, chosen + int64_t(h) * x.rows);
    for (int32_t h = 1; h < x.heads && !per_head; ++h)
      team.each(x.rows, [&](int32_t i) { chosen[int64_t(h) * x.rows + i] = chosen[i]; });
  }
  // with_h2o: a row that is no heavy hitter keeps score -1 for ever.
  void observe(const Team auto& team, Cache auto& cache, std::span<const double> p) {
    if (variant == Variant::with_h2o)
      team.each(cache.size(), [&](int32_t i) { cache.score(i) += resident(cache, i) ? p[size_t(i)] : 0; });
  }
  void evict(const Team auto& team, Cache auto& cache) {
    if (variant != Variant::with_h2o || cache.size() <= heavy) return;
    choose_top(
        team, cache.size(), heavy, [&](int32_t i) { return cache.score(i); },
        [&](int32_t i, bool yes) { cache.mark(i) = yes ? 1 : 0; });
    team.each(cache.size(), [&](int32_t i) {
      if (cache.mark(i) == 0) cache.score(i) = -1;
    });
  }

 private:
  static bool resident(const auto& cache, int32_t i) { return cache.score(i) >= 0; }
  void read(const Team auto& team, const Cache auto& cache, auto x, uint8_t* chosen) const {
    const int32_t newest = cache.size() - 1;
    const bool plus_current = variant == Variant::topk_plus_current;
    const int32_t count = plus_current                   ? int32_t(f * cache.token(newest))
                          : variant == Variant::with_h2o ? budget - heavy
                                                         : budget + extra;
    const uint8_t rest = renormalise ? kUnread : kWeighed;
    choose_top(team, plus_current ? newest : newest + 1, count, x,
               [&](int32_t i, bool yes) { chosen[i] = yes ? kRead : rest; });
    if (plus_current) team.each(1, [&](int32_t) { chosen[newest] = kRead; });
    if (variant == Variant::with_h2o)
      team.each(newest + 1, [&](int32_t i) {
        if (resident(cache, i)) chosen[i] = kRead;
      });
  }
};

}  // namespace kvreplay
