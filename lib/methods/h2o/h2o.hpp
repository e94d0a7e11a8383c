#pragma once
#include "methods/h2o/masks.hpp"
#include "methods/h2o/scores.hpp"
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
// Changes to the scores of real_drop (scores.hpp), after the package keys_values and Q-Hitter, MLSys 2024:
//   `score_norm: age`  a cut with T tokens seen goes by A[i] / (T - max(i, P-1)); `recent` is its grace period.
//   `weight: vnorm`    a call of R rows (the prompt or a chunk: all its rows; a step: 1) adds
//                      R m_i ||v_i|| / sum_j m_j ||v_j||, with m_i the attention that these rows give to token i.
//   `qhitter: c`       a cut goes by c mm(A) + (c-1)/2 mm(E) + (1-c). E is the token's error in the row format int4, mm
//                      scales the unprotected tokens to 0..1. With `score_norm: age` A is divided first.
// Variants that only mask (h2o_masks.hpp): hf_mask, local_mask, and the oracle oracle_global.
struct H2o : H2oVariants {
  static constexpr MethodInfo info{
      .name = "h2o",
      .title = "heavy hitters + recent window",
      .source = "H2O, Zhang et al. 2023, section 4 (the released real-drop class)",
      .tier = 1,
      .memory =
          "heavy + recent tokens, one score each; weight and qhitter: one more number each; the variants "
          "that mask hold the full cache",
      .deviation =
          "follows the released code, which protects recent tokens and lets the prompt's rows vote at full "
          "weight; the paper's Algorithm 1 protects nothing (variant alg1). Scores of grouped query heads "
          "are summed (the release knows no groups), in double precision. oracle_global sees the future. qhitter "
          "scales over one kv head and codes every token as int4; its code scales over all kv heads of a layer and "
          "codes as "
          "its cache does. The newest token competes unless `recent` protects it, which keys_values always does.",
      .selects = true,
  };
  static constexpr Hooks hooks{
      "observe_prompt read_prompt evict choose observe extra_bytes report layout needs traits protection score_rule "
      "voters failure_text set_options state"};
  int32_t first_voter = 0;  // prompt rows from this index on vote
  bool ranked = false;      // oracle_global: the future was read
  // Columns of the masks; the outputs of a step, for scores that use them; errors in int4 [tokens], then the votes of a
  // call so far [tokens].
  std::span<double> state;

  static void declare(auto& d) { declare_variants<H2o>(d); }
  Layout layout(const MethodContext& context) const {
    const bool columns = is(Variant::local_mask) || is(Variant::oracle_global);
    if (more_numbers() > 0) return {.state_doubles = 2 * int64_t(context.tokens), .scores = true};
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
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    if (streams) c.mark_bytes = 8 * int64_t(more_numbers()) * cache.size();
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
    if (ages() || more_numbers() > 0) return std::nullopt;
    ScoreRule rule{.carry = 1, .protect = protection(), .budget = budget, .plan = plan};
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
    if (asks_for_errors()) errors().add_missing(team, cache);
    if (score_rows == kDecodeRows) return;
    const auto add = [&](int32_t i, double x) {
      cache.score(i) = x / (means() ? seen_by(cache.token(i), p.size() - 1) : 1);
    };
    const auto sum = [&](int32_t i) { return p.column_sum(cache.token(i)); };
    if (weighs_values())
      h2o_scores::weigh_by_values(team, cache, p.size() - first_voter, h2o_scores::sum_by_values(team, p), sum, add);
    else team.each(cache.size(), [&](int32_t i) { add(i, sum(i)); });
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
    if (asks_for_errors()) errors().add(cache, cache.size() - 1);
    const StepScores given{score, p, state};
    given.open(team, cache);
    if (weighs_values()) return add_weighted(team, cache, p);
    team.each(cache.size(), [&](int32_t i) { add_votes(cache, i, t, 1, given(cache, i)); });
  }
  void evict(const Team auto& team, Cache auto& cache) {
    const int32_t n = cache.size();
    if (fits_budget() && plan.is_plain()) return;
    if (is(Variant::oracle_global) && !ranked) cache.fail(1, 0);
    if (is(Variant::hf_mask)) return h2o_mask::reset_hidden(team, cache, heavy, recent);
    if (masks()) return;
    const auto safe = [&](int32_t m) { return Protect{.sinks = sinks, .recent = recent_of(m)}; };
    if (ages() || asks_for_errors()) return cut_adjusted(team, cache, safe);
    const auto a = [&](int32_t i) { return cache.score(i); };
    if (!is(Variant::flexgen)) return cut(team, cache, plan, safe, a);
    if (cache.token(n - 1) < prompt) keep_best(team, cache, {.recent = recent}, heavy, a);
    else if (n > heavy) keep_best(team, cache, {.recent = heavy}, n - heavy - 1, a);
  }

 private:
  int32_t first_prompt_voter(int32_t size) const {
    if (score_rows == kAllRows) return 0;
    return score_rows == kDecodeRows ? size : size > score_rows ? size - score_rows : 0;
  }
  h2o_scores::Int4Errors errors() const { return {state.first(state.size() / 2)}; }
  // Adds what `rows` rows, up to row t, give to a row of the cache: to its sum, or to its mean.
  void add_votes(Cache auto& cache, int32_t i, int32_t t, int32_t rows, double x) const {
    double& a = cache.score(i);
    if (!means()) return void(a += x);
    const int32_t seen = seen_by(cache.token(i), t);
    a += (x - (rows < seen ? rows : seen) * a) / seen;
  }
  // `weight: vnorm`, row by row. Nothing is cut inside a call.
  void add_weighted(const Team auto& team, Cache auto& cache, HeadProbabilities p) const {
    const int32_t t = cache.token(cache.size() - 1);
    const auto votes = [&](int32_t i) -> double& { return state[state.size() / 2 + size_t(cache.token(i))]; };
    team.each(cache.size(), [&](int32_t i) { votes(i) += p.group(i); });
    if (plan.is_inside_call(t)) return;
    const int32_t rows = plan.rows_of_call(t);
    h2o_scores::weigh_by_values(team, cache, rows, h2o_scores::sum_by_values(team, cache, votes), votes,
                                [&](int32_t i, double x) { add_votes(cache, i, t, rows, x); });
    team.each(cache.size(), [&](int32_t i) { votes(i) = 0; });
  }
  // Cuts by scores that depend on the cut: sums divided by ages, sums set against errors.
  void cut_adjusted(const Team auto& team, Cache auto& cache, auto safe) const {
    if (!is_due(plan, cache)) return;
    const int32_t seen = cache.token(cache.size() - 1) + 1;
    const auto a = [&](int32_t i) {
      return cache.score(i) / (ages() ? h2o_scores::age(cache.token(i), seen, prompt) : 1);
    };
    if (!asks_for_errors()) return cut(team, cache, plan, safe, a);
    errors().add_missing(team, cache);
    h2o_scores::AgainstErrors z{qhitter, errors()};
    Protect none = safe(plan.target(seen));
    if (plan.options.keep_prompt) none.sinks = plan.prompt;
    z.scale(team, cache, none, a);
    cut(team, cache, plan, safe, [&](int32_t i) { return z(cache, i, a(i)); });
  }
  int32_t seen_by(int32_t token, int32_t t) const { return ScoreRule::seen_by(token, first_voter, t); }
};

}  // namespace kvreplay
