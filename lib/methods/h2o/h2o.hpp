#pragma once
#include "methods/h2o/masks.hpp"
#include "methods/h2o/variants.hpp"
#include "methods/parts/step_scores.hpp"

namespace kvreplay {

// H2O, Zhang et al. 2023, Algorithm 1 and section 4: the recent half of the budget, and the heavy hitters by
// accumulated attention among the rest.
//  1. Prompt: A[j] = sum over all P causal rows and the group of x_i(j).
//  2. Decode: append; A[i] += p_t(i) for every resident i, the newest included.
//  3. If more than heavy + recent tokens are held: keep the last `recent` and the top `heavy` by A.
//  4. The score of an evicted token is lost; the others keep theirs, without decay.
// Variants that evict:
//   alg1       the paper's box: from token 0 on, add while fewer than B are held; then attend, accumulate, and
//              evict the smallest A among S and t. No recent token is protected: the newest may be evicted at once.
//   flexgen    the prompt keeps the top `heavy` of its first P-heavy+1 tokens and the last heavy-1; then every
//              step evicts the weakest heavy token, and the oldest recent one takes its place unconditionally.
//   observed   as in later libraries: one cut, by the mean over the rows that saw a token; no recents.
//   kvfactory  one cut, the last 32 and the top B-32.
// `score` obc_value, obc_key or obc_joint: replaces x and p_t by the error of a row's output without the token
// (core/token.hpp).
// Variants that only mask (h2o_masks.hpp): hf_mask, local_mask, and the oracle oracle_global.
struct H2o : H2oVariants {
  static constexpr MethodInfo info{
      .name = "h2o",
      .title = "heavy hitters + recent window",
      .source = "H2O, Zhang et al. 2023, section 4 (the released real-drop class)",
      .tier = 1,
      .memory = "heavy + recent tokens, one score each; the variants that mask hold the full cache",
      .deviation =
          "follows the released code, which protects recent tokens and lets the prompt's rows vote at full "
          "weight; the paper's Algorithm 1 protects nothing (variant alg1). Scores of grouped query heads "
          "are summed (the release knows no groups), in double precision. oracle_global sees the future.",
  };
  static constexpr Hooks hooks{
      "observe_prompt read_prompt evict choose observe extra_bytes report layout needs traits protection score_rule "
      "voters failure_text set_options state"};
  int32_t first_voter = 0;  // prompt rows from this index on vote
  bool ranked = false;      // oracle_global: the future was read
  std::span<double> state;  // columns of the masks; the outputs of a step, for scores that use them

  static void declare(auto& d) { declare_variants<H2o>(d); }
  Layout layout(const MethodContext& context) const {
    const bool columns = is(Variant::local_mask) || is(Variant::oracle_global);
    return {.state_doubles = columns ? 2 * int64_t(context.tokens) : StepScores::state_doubles(score, context.shape),
            .scores = true};
  }
  PromptNeeds needs(const MethodContext& context) const {
    if (is(Variant::local_mask)) return {.rows_from = 0};
    if (score_rows == kDecodeRows) return {};
    return {.column_sums_from = first_prompt_voter(context.prompt_tokens),
            .column_sums_of = score,
            .future_sums = is(Variant::oracle_global)};
  }
  void traits(Traits& t) const {
    t.chooses = t.holds_all = t.implied_layout = masks();
    t.streams_prompt = is(Variant::alg1);
    t.observes = !is_one_shot() && !is(Variant::oracle_global);
  }
  void extra_bytes(ExtraBytes& c, const auto&) const {
    c.aux_bytes = is(Variant::oracle_global) ? 4 * int64_t(heavy) : 0;
  }
  void report(auto& extras, const auto&) const {
    if (is(Variant::oracle_global)) extras["sees_future"] = 1;
  }
  double voters(const MethodContext& context) const {
    const int32_t rows = context.prompt_tokens - first_prompt_voter(context.prompt_tokens);
    return double(rows > 0 ? rows : 1) * (context.aggregate == Aggregate::sum ? context.shape.heads : 1);
  }
  std::optional<ScoreRule> score_rule() const {
    if (!is(Variant::real_drop) || score != TokenScore::attention) return std::nullopt;
    ScoreRule rule{.carry = 1, .protect = protection(), .budget = budget};
    if (means()) rule.vote = ScoreRule::Vote::mean, rule.first_voter = first_voter;
    return rule;
  }
  static std::string failure_text(int32_t, int32_t) {
    return "variant oracle_global ranks all rows at the end of the prompt, which must come in one call (prompt cut)";
  }

  void observe_prompt(const Team auto& team, int32_t, HeadProbabilities x) {
    h2o_mask::keep_local(
        team, {state}, heavy, x.rows, [](int32_t i) { return i; }, [&](int32_t i) { return x.group(i); });
  }
  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& p, BasicCache<Real>& cache) {
    if (is(Variant::local_mask)) return;
    if (is(Variant::oracle_global)) {
      h2o_mask::keep_global(team, p, {state}, heavy);
      ranked = true;
      return;
    }
    first_voter = first_prompt_voter(p.size());
    if (score_rows == kDecodeRows) return;
    team.each(cache.size(), [&](int32_t i) {
      const int32_t token = cache.token(i);
      cache.score(i) = p.column_sum(token) / (means() ? seen_by(token, p.size() - 1) : 1);
    });
  }
  void choose(const Team auto& team, const Cache auto& cache, HeadProbabilities x, uint8_t* chosen) {
    const auto see = [&](int32_t i, bool yes) {
      for (int32_t h = 0; h < x.heads; ++h) chosen[int64_t(h) * x.rows + i] = yes ? kRead : kUnread;
    };
    if (fits_budget()) return team.each(x.rows, [&](int32_t i) { see(i, true); });
    if (is(Variant::hf_mask)) return h2o_mask::see_heavy(team, cache, heavy, recent, see);
    if (is(Variant::local_mask))
      h2o_mask::keep_local(
          team, {state}, heavy, x.rows, [&](int32_t i) { return cache.token(i); },
          [&](int32_t i) { return x.group(i); });
    h2o_mask::see_kept(team, {state}, cache, is(Variant::local_mask) ? recent : recent + 1, see);
  }
  void observe(const Team auto& team, Cache auto& cache, HeadProbabilities p) {
    if (is(Variant::alg1) && cache.size() <= budget) return;  // the box attends only once the set is full
    const int32_t t = cache.token(cache.size() - 1);
    const StepScores given{score, p, state};
    given.open(team, cache);
    team.each(cache.size(), [&](int32_t i) {
      double& a = cache.score(i);
      const double x = given(cache, i);
      a += means() ? (x - a) / seen_by(cache.token(i), t) : x;  // the mean, including one more row
    });
  }
  void evict(const Team auto& team, Cache auto& cache) {
    const int32_t n = cache.size();
    if (fits_budget()) return;
    if (is(Variant::oracle_global) && !ranked) cache.fail(1, 0);
    if (is(Variant::hf_mask)) return h2o_mask::reset_hidden(team, cache, heavy, recent);
    if (masks()) return;
    if (!is(Variant::flexgen)) return keep_scored(team, cache, protection(), budget);
    const auto a = [&](int32_t i) { return cache.score(i); };
    if (cache.token(n - 1) < prompt) keep_best(team, cache, {.recent = recent}, heavy, a);
    else if (n > heavy) keep_best(team, cache, {.recent = heavy}, n - heavy - 1, a);
  }

 private:
  int32_t first_prompt_voter(int32_t size) const {
    if (score_rows == kAllRows) return 0;
    return score_rows == kDecodeRows ? size : size > score_rows ? size - score_rows : 0;
  }
  int32_t seen_by(int32_t token, int32_t t) const { return ScoreRule::seen_by(token, first_voter, t); }
};

}  // namespace kvreplay
