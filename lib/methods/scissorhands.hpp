#pragma once
#include "core/selecting.hpp"

namespace kvreplay {

// Scissorhands, Liu et al. 2023, algorithms 1 and 2: evicts tokens that received little attention in the recent past
// ("persistence of importance"), half of the cache at a time.
//  1. In row t token i is "low" iff the group sum of p_t(i) is strictly below G/|C_t|.
//  2. Its counter is the number of low marks in the last `hist` rows, prompt rows included.
//  3. If more than B tokens are held, evict the `drop` tokens with the largest counter outside the last `recent`; among
//     equal counters the higher index is evicted first.
//  4. End of the prompt: evict P - B in the same way.
// Counters tie in most decisions, so the rule for ties matters. `fraction` divides by the number of the last `hist`
// rows that saw the token. `authors_code` is another algorithm: from token 100 on a token stays iff one of the last 100
// rows gave it more than the entry at rank int(0.9 * width) of that row, sorted as stored: a prompt row has width P,
// with zeros for its future. The last 10 always stay, and there is no budget.
struct Scissorhands : Selecting<0, 10> {
  static constexpr MethodInfo info{
      .name = "scissorhands",
      .title = "evicts tokens seldom attended to by the last rows",
      .source = "Scissorhands, Liu et al. 2023, algorithms 1 and 2",
      .tier = 1,
      .memory = "B tokens, each with a ring of hist marks (hist/8 bytes) and their count",
      .deviation =
          "paper and released code are different algorithms: the paper's is the default. The release runs "
          "authors_code on layers 5 to 35 of OPT-66B only.",
      .selects = true,
  };
  static constexpr Hooks hooks{
      "observe_prompt read_prompt evict observe extra_bytes layout needs traits protection score_rule state"};
  enum class Variant { standard, fraction, authors_code };
  static constexpr int32_t kHist = 400, kCodeHist = 100, kCodeFirst = 100;
  static constexpr double kCodeRank = 0.9;
  Variant variant = Variant::standard;
  int32_t hist = kHist, drop = kDerived;
  int32_t prompt = 0, tokens = 0, heads = 1;
  LayerWindow window;
  Aggregate how = Aggregate::sum;
  bool prompt_ends = false;  // the next cut is the prompt's
  std::span<double> state;   // [words, tokens] rings of marks, 64 to a word

  static void declare(auto& d) {
    d.choice("variant", &Scissorhands::variant, {"default", "fraction", "authors_code"}, "which rule");
    d.integer("hist", &Scissorhands::hist, {1, kManyTokens}, "rows whose marks count (authors_code: 100)");
    d.integer("drop", &Scissorhands::drop, {1, kManyTokens}, "tokens evicted at a time",
              "max(1, min(floor(B/2), B - recent))");
    protect<Scissorhands>(d);
  }
  void resolve(const MethodContext& context) {
    prompt = context.prompt_tokens, tokens = context.tokens, window = context.window;
    heads = context.shape.heads, how = context.aggregate;
    if (variant == Variant::authors_code) return resolve_code();
    Selecting::resolve(context);
    const int32_t others = budget - sinks - recent, most = others > 1 ? others : 1;
    if (drop == kDerived) drop = budget / 2 < 1 ? 1 : budget / 2 < most ? budget / 2 : most;
    if (drop > most)
      throw ParameterError("drop", "drop " + std::to_string(drop) + " exceeds the " + std::to_string(most) +
                                       " unprotected tokens of the budget; lower drop");
  }
  void traits(Traits& t) const {
    t.takes_budget = variant != Variant::authors_code;
    t.max_rows = t.takes_budget ? budget : tokens;
  }
  Layout layout(const MethodContext& s) const { return {.state_doubles = int64_t(s.tokens) * words(), .scores = true}; }
  PromptNeeds needs(const MethodContext& s) const {
    return {.rows_from = s.prompt_tokens > hist ? s.prompt_tokens - hist : 0};
  }
  void extra_bytes(ExtraBytes& c, const auto& cache) const { c.mark_bytes = (int64_t(cache.size()) * hist + 7) / 8; }
  std::optional<ScoreRule> score_rule() const {
    if (variant != Variant::standard || !plan.is_plain()) return std::nullopt;
    return ScoreRule{
        .vote = ScoreRule::Vote::low_marks, .protect = protection(), .budget = budget, .drop = drop, .marks = rings()};
  }

  void observe_prompt(const Team auto& team, int32_t t, HeadProbabilities p) {
    const auto probability = [&](int32_t i) { return p.group(i); };
    const double limit = limit_of(team, t + 1, prompt, window.seen(t), probability);
    const MarkRings::Row marks = rings().row(t);
    team.each(t + 1, [&](int32_t i) { marks.set(i, is_marked(probability(i), limit)); });
  }
  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>&, BasicCache<Real>& cache) {
    team.each(cache.size(), [&](int32_t i) { cache.score(i) = count(cache.token(i)); });
    prompt_ends = true;
  }
  void observe(const Team auto& team, Cache auto& cache, std::span<const double> p) {
    const int32_t rows = cache.size(), t = cache.token(rows - 1);
    const auto probability = [&](int32_t i) { return p[size_t(i)]; };
    const double limit = limit_of(team, rows, rows, rows, probability);
    const MarkRings::Row marks = rings().row(t);
    team.each(rows, [&](int32_t i) { cache.score(i) += marks.set(cache.token(i), is_marked(p[size_t(i)], limit)); });
  }
  void evict(const Team auto& team, Cache auto& cache) {
    const int32_t rows = cache.size(), newest = cache.token(rows - 1), excess = rows - budget;
    const int32_t leaving = prompt_ends ? excess : drop;
    const bool ends = prompt_ends;
    prompt_ends = false;
    if (!plan.is_plain()) return cut_by_plan(team, cache, ends);
    if (variant == Variant::authors_code) {
      if (newest >= kCodeFirst)
        cache.retain(team,
                     [&](int32_t i) { return cache.score(i) > 0 || cache.token(i) < sinks || i >= rows - recent; });
    } else if (excess > 0) {
      const int32_t candidates = rows - held_sinks(cache, sinks) - recent;
      keep_best(team, cache, protection(), candidates - leaving,
                [&](int32_t i) { return attention(cache.score(i), newest - cache.token(i) + 1); });
    }
  }

 private:
  // Higher for tokens that got attention more often; seen: rows that saw the token.
  double attention(double low_rows, int32_t seen) const {
    return -low_rows / (variant == Variant::fraction ? seen < hist ? seen : hist : 1);
  }
  // The cut with the options of serving. Where tokens leave one by one, at least `drop` leave at a time here too.
  void cut_by_plan(const Team auto& team, Cache auto& cache, bool ends) const {
    if (!is_due(plan, cache)) return;
    const int32_t rows = cache.size(), newest = cache.token(rows - 1);
    const auto score = [&](int32_t i) { return attention(cache.score(i), newest - cache.token(i) + 1); };
    const bool single = !plan.options.pages.whole() && !plan.options.keep_prompt;
    const int32_t excess = rows - plan.target(newest + 1);
    if (!single || ends || excess >= drop)
      return cut(
          team, cache, plan, [&](int32_t) { return protection(); }, score);
    const int32_t left = rows - held_sinks(cache, sinks) - recent - drop;
    if (excess > 0) keep_best(team, cache, protection(), left > 0 ? left : 0, score);
  }
  void resolve_code() {
    if (hist != kHist && hist != kCodeHist)
      throw ParameterError("hist", "variant authors_code counts the last 100 rows; leave hist out");
    hist = kCodeHist;
  }
  int32_t words() const { return MarkRings::words_for(hist < tokens ? hist : tokens); }
  // Limit for a row's probabilities: `held` of them are stored, the row is `width` wide, and it attends to `live`
  // tokens.
  double limit_of(const Team auto& team, int32_t held, int32_t width, int32_t live, auto probability) const {
    if (variant != Variant::authors_code) return double(how == Aggregate::sum ? heads : 1) / live;
    const int32_t rank = width - int32_t(kCodeRank * width);  // from the top
    return rank > held ? 0.0 : score_at_rank(team, held, rank, probability);
  }
  bool is_marked(double p, double limit) const { return variant == Variant::authors_code ? p > limit : p < limit; }
  MarkRings rings() const { return {state.data(), hist, words(), 1, tokens}; }
  int32_t count(int32_t i) const {
    int32_t n = 0;
    for (int32_t w = 0; w < words(); ++w) n += std::popcount(std::bit_cast<uint64_t>(rings().word(i, w)));
    return n;
  }
};

}  // namespace kvreplay
