#pragma once
#include "core/selecting.hpp"

namespace kvreplay {

// The parameters of H2O (h2o.hpp): which of the rules released under its name, and how the budget is split. heavy +
// recent is the budget, except for flexgen, which holds 2 * heavy - 1 tokens.
struct H2oVariants : Selecting<0, kDerived> {
  enum class Variant { real_drop, alg1, hf_mask, local_mask, flexgen, oracle_global, observed, kvfactory };
  static constexpr const char* kVariants[] = {"real_drop", "alg1",          "hf_mask",  "local_mask",
                                              "flexgen",   "oracle_global", "observed", "kvfactory"};
  enum class Norm { sum, mean, age };
  enum class Weight { none, vnorm };
  Variant variant = Variant::real_drop;
  double recent_frac = 0.5;
  int32_t prompt = 0, tokens = 0;
  bool streams = true;  // scores are needed after the prompt's cut
  int32_t heavy = kDerived, score_rows = kAllRows;
  bool derives_heavy = false, derives_recent = false;  // sizes that follow the budget
  Norm score_norm = Norm::sum;
  TokenScore score = TokenScore::attention;
  Weight weight = Weight::none;
  double qhitter = kUnset;

  template <class M>
  static void declare_variants(auto& d) {
    d.choice("variant", static_cast<Variant M::*>(&M::variant), kVariants,
             "which rule; *_mask and oracle_global hold the full cache, oracle_global sees the future");
    d.real("recent_frac", &M::recent_frac, {0, 1}, "share of the budget that is the recent window");
    d.integer("heavy", &M::heavy, {0, kManyTokens}, "heavy hitters, tokens; sinks count among them",
              "floor((1 - recent_frac) * B + 1e-9)");
    protect<M>(d, "B - heavy");
    d.rows("score_rows", &M::score_rows, "rows of the prompt that vote");
    d.choice("score_norm", static_cast<Norm M::*>(&M::score_norm), {"sum", "mean", "age"},
             "mean: divided by the number of rows that saw the token, as in variant observed; age: by the steps since "
             "the token, or since the prompt");
    d.choice("score", static_cast<TokenScore M::*>(&M::score), kTokenScores,
             "score that a row adds to a token: its probability, or the error of the output without it");
    d.choice("weight", static_cast<Weight M::*>(&M::weight), {"none", "vnorm"},
             "vnorm: attention times the norm of the value, as a share of the sum over the held tokens");
    d.real("qhitter", &M::qhitter, {0, 1},
           "weight of attention against the error of the token in int4 (Q-Hitter, released: 0.5)", "not used");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens, prompt = context.prompt_tokens, tokens = context.tokens;
    streams = context.phase == Phase::stream;
    check_variant(context.phase);
    derives_heavy = heavy == kDerived, derives_recent = recent == kDerived;
    if (derives_heavy) heavy = derives_recent ? default_heavy(budget) : budget - recent;
    if (derives_recent) recent = is(Variant::flexgen) ? heavy - 1 : budget - heavy;
    check_sizes();
    check_plan(context);
  }
  static void set_options(const H2oVariants& m, CommonOptions& options) {
    if (m.is_one_shot()) options.phase = Phase::oneshot;
  }
  bool masks() const { return is(Variant::hf_mask) || is(Variant::local_mask) || is(Variant::oracle_global); }
  bool fits_budget() const { return budget >= tokens; }  // nothing is evicted or hidden (convention C10)
  bool is(Variant v) const { return variant == v; }
  bool means() const { return score_norm == Norm::mean || is(Variant::observed); }
  bool ages() const { return score_norm == Norm::age; }
  bool weighs_values() const { return weight == Weight::vnorm; }
  bool asks_for_errors() const { return qhitter != kUnset; }
  // Numbers of a token besides its score: the norm of its value, its error in int4.
  int32_t more_numbers() const { return int32_t(weighs_values()) + int32_t(asks_for_errors()); }
  bool is_one_shot() const { return is(Variant::observed) || is(Variant::kvfactory); }
  // The recent window where m tokens stay.
  int32_t recent_of(int32_t m) const {
    if (!derives_recent) return recent;
    return m - (derives_heavy ? default_heavy(m) : heavy);
  }

 private:
  int32_t default_heavy(int32_t m) const {
    if (is(Variant::alg1) || is(Variant::observed)) return m;
    if (is(Variant::kvfactory)) return m > 32 ? m - 32 : 0;
    return int32_t((1 - recent_frac) * m + 1e-9);
  }
  void check_variant(Phase phase) const {
    const std::string name = std::string("variant ") + kVariants[int(variant)];
    if (is_one_shot() && phase == Phase::stream)
      throw ParameterError("variant", name + " cuts once; it runs with `phase: oneshot` only");
    if (!is_one_shot() && !is(Variant::real_drop) && phase == Phase::oneshot)
      throw ParameterError("variant", name + " decides at every step; it runs with `phase: stream` only");
    if (!is(Variant::real_drop) && (score_rows != kAllRows || (score_norm != Norm::sum && !is(Variant::observed))))
      throw ParameterError("score_rows", name + " defines which rows vote; leave out score_rows and score_norm");
    if (!is(Variant::real_drop) && more_numbers() > 0)
      throw ParameterError(weighs_values() ? "weight" : "qhitter",
                           name + " defines its scores; weight and qhitter change those of variant real_drop only");
    if (score != TokenScore::attention && more_numbers() > 0)
      throw ParameterError("score", std::string("weight and qhitter follow a code that adds up attention, and score ") +
                                        kTokenScores[int(score)] + " is none; leave out one of them");
    if (masks() && score != TokenScore::attention)
      throw ParameterError("score", name + " follows the released code, which adds up attention; leave out score");
    if (sinks > 0 && (masks() || is(Variant::flexgen)))
      throw ParameterError("sinks",
                           name + " follows the released code, which protects no first tokens; leave out sinks");
  }
  void check_plan(const MethodContext& context) {
    const int32_t m = std::max(1, cut_plan(context, {}).target(context.prompt_tokens));
    plan = cut_plan(context, {.sinks = sinks, .recent = recent_of(m)});
    check_first_cut(plan, sinks + recent_of(m));
    if (!plan.is_plain() && (masks() || is(Variant::alg1) || is(Variant::flexgen)))
      throw ParameterError("variant", std::string("variant ") + kVariants[int(variant)] +
                                          " follows released code, which evicts at every step; leave out the variant, "
                                          "or the options of serving");
    if (plan.growth.any() && !derives_heavy && !derives_recent)
      throw ParameterError("heavy",
                           "a budget that grows does not agree with a fixed sum of heavy and recent; leave "
                           "one of them out");
  }
  void check_sizes() const {
    const std::string sizes = "heavy " + std::to_string(heavy) + " + recent " + std::to_string(recent);
    const bool fits = is(Variant::flexgen) ? heavy + recent <= budget : heavy + recent == budget;
    if (heavy < 0 || recent < 0 || !fits)
      throw ParameterError("heavy", sizes + " is not the budget of " + std::to_string(budget) +
                                        "; leave one of them out, or make them add up");
    if (is(Variant::hf_mask) && recent == 0)
      throw ParameterError("recent", "variant hf_mask needs a recent token: lower heavy or recent_frac > 0");
    if ((is(Variant::flexgen) && recent != heavy - 1) || (is(Variant::local_mask) && heavy == 0))
      throw ParameterError("heavy", std::string("variant ") + kVariants[int(variant)] +
                                        " needs a heavy token, and flexgen heavy - 1 recent ones");
    if (sinks > heavy) throw protection_error(sinks, recent, budget);
  }
};

}  // namespace kvreplay
