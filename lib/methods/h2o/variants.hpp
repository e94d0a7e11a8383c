#pragma once
#include "core/selecting.hpp"

namespace kvreplay {

// The parameters of H2O (h2o.hpp): which of the rules released under its name, and how the budget is split. heavy +
// recent is the budget, except for flexgen, which holds 2 * heavy - 1 tokens.
struct H2oVariants : Selecting<0, kDerived> {
  enum class Variant { real_drop, alg1, hf_mask, local_mask, flexgen, oracle_global, observed, kvfactory };
  static constexpr const char* kVariants[] = {"real_drop", "alg1",          "hf_mask",  "local_mask",
                                              "flexgen",   "oracle_global", "observed", "kvfactory"};
  enum class Norm { sum, mean };
  Variant variant = Variant::real_drop;
  double recent_frac = 0.5;
  int32_t prompt = 0, tokens = 0;
  int32_t heavy = kDerived, score_rows = kAllRows;
  Norm score_norm = Norm::sum;
  TokenScore score = TokenScore::attention;

  template <class M>
  static void declare_variants(auto& d) {
    d.choice("variant", static_cast<Variant M::*>(&M::variant), kVariants,
             "which rule; *_mask and oracle_global hold the full cache, oracle_global sees the future");
    d.real("recent_frac", &M::recent_frac, {0, 1}, "share of the budget that is the recent window");
    d.integer("heavy", &M::heavy, {0, kManyTokens}, "heavy hitters, tokens; sinks count among them",
              "floor((1 - recent_frac) * B + 1e-9)");
    protect<M>(d, "B - heavy");
    d.rows("score_rows", &M::score_rows, "rows of the prompt that vote");
    d.choice("score_norm", static_cast<Norm M::*>(&M::score_norm), {"sum", "mean"},
             "mean: divided by the number of rows that saw the token, as in variant observed");
    d.choice("score", static_cast<TokenScore M::*>(&M::score), kTokenScores,
             "score that a row adds to a token: its probability, or the error of the output without it");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens, prompt = context.prompt_tokens, tokens = context.tokens;
    check_variant(context.phase);
    if (heavy == kDerived) heavy = recent == kDerived ? default_heavy() : budget - recent;
    if (recent == kDerived) recent = is(Variant::flexgen) ? heavy - 1 : budget - heavy;
    check_sizes();
  }
  static void set_options(const H2oVariants& m, CommonOptions& options) {
    if (m.is_one_shot()) options.phase = Phase::oneshot;
  }
  bool masks() const { return is(Variant::hf_mask) || is(Variant::local_mask) || is(Variant::oracle_global); }
  bool fits_budget() const { return budget >= tokens; }  // nothing is evicted or hidden (convention C10)
  bool is(Variant v) const { return variant == v; }
  bool means() const { return score_norm == Norm::mean || is(Variant::observed); }
  bool is_one_shot() const { return is(Variant::observed) || is(Variant::kvfactory); }

 private:
  int32_t default_heavy() const {
    if (is(Variant::alg1) || is(Variant::observed)) return budget;
    if (is(Variant::kvfactory)) return budget > 32 ? budget - 32 : 0;
    return int32_t((1 - recent_frac) * budget + 1e-9);
  }
  void check_variant(Phase phase) const {
    const std::string name = std::string("variant ") + kVariants[int(variant)];
    if (is_one_shot() && phase == Phase::stream)
      throw ParameterError("variant", name + " cuts once; it runs with `phase: oneshot` only");
    if (!is_one_shot() && !is(Variant::real_drop) && phase == Phase::oneshot)
      throw ParameterError("variant", name + " decides at every step; it runs with `phase: stream` only");
    if (!is(Variant::real_drop) && (score_rows != kAllRows || (score_norm != Norm::sum && !is(Variant::observed))))
      throw ParameterError("score_rows", name + " defines which rows vote; leave out score_rows and score_norm");
    if (masks() && score != TokenScore::attention)
      throw ParameterError("score", name + " follows the released code, which adds up attention; leave out score");
    if (sinks > 0 && (masks() || is(Variant::flexgen)))
      throw ParameterError("sinks",
                           name + " follows the released code, which protects no first tokens; leave out sinks");
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
