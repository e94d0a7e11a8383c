#pragma once
#include <cstdint>

#include "core/select.hpp"
#include "methods/parts/log_n.hpp"
#include "methods/parts/step_scores.hpp"
#include "theory/buzz.hpp"

namespace kvreplay {

// One pass of BUZZ over a list of tokens, however it is stored: `first` sinks, a middle, and a recent window. Tokens of
// the middle that a pass keeps are old in the next pass.
struct Beehive {
  int32_t window = 0, fires_at = 1;    // fires_at: length of the middle that triggers a pass
  int32_t old_step = 1, new_step = 1;  // keeps every old_step-th old token and one of each new_step new tokens
  bool heaviest = true;                // keeps the highest score of a segment; false: its first token
  int32_t first_new = 0;               // tokens below this index have been through a pass

  // Marks which tokens of the list stay, stays(i) = 1 or 0, by token(i) and score(i); false if there is nothing to do.
  bool pass(const Team auto& team, int32_t size, int32_t first, auto token, auto score, auto stays) {
    const int32_t middle = size - first - window, end = first + middle;
    if (middle < fires_at) return false;
    const int32_t old = team.count(middle, [&](int32_t j) { return token(first + j) < first_new; });
    team.each(size, [&](int32_t i) {
      stays(i) = i < first || i >= end || (i - first < old && (i - first) % old_step == 0) ? 1 : 0;
    });
    team.each((middle - old + new_step - 1) / new_step, [&](int32_t segment) {
      const int32_t from = first + old + segment * new_step, to = from + new_step < end ? from + new_step : end;
      int32_t best = from;
      for (int32_t i = from + 1; i < to && heaviest; ++i)
        if (score(i) > score(best)) best = i;
      stays(best) = 1;
    });
    first_new = token(end);
    return true;
  }
  // Runs one pass over a list of token numbers; `score` has one number per token of the trace. Returns how many stay.
  // `stays` [size] is scratch.
  int32_t thin(const Team auto& team, double* list, int32_t size, int32_t sinks, const double* score, double* stays) {
    const auto token = [&](int32_t i) { return int32_t(list[i]); };
    const bool fired = pass(
        team, size, size < sinks ? size : sinks, token, [&](int32_t i) { return score[token(i)]; },
        [&](int32_t i) -> double& { return stays[i]; });
    if (!fired) return size;
    return team.compact(
        size, [&](int32_t i) { return stays[i] != 0; }, [&](int32_t i) { return list[i]; },
        [&](int32_t to, double kept) { list[to] = kept; });
  }
  // Runs one pass over a cache by its scores; false if it evicted no token.
  bool thin(const Team auto& team, Cache auto& cache, int32_t sinks) {
    const int32_t before = cache.size();
    const bool fired = pass(
        team, before, held_sinks(cache, sinks), [&](int32_t i) { return cache.token(i); },
        [&](int32_t i) { return cache.score(i); }, [&](int32_t i) -> uint8_t& { return cache.mark(i); });
    if (fired) cache.retain(team, [&](int32_t i) { return cache.mark(i) != 0; });
    return cache.size() < before;
  }
};

// BUZZ, Zhao et al. 2024, algorithms 1 and 2, appendix: sinks, a recent window, and between them a beehive in which
// every cell keeps its heaviest token.
//  1. A as in H2O: prompt rows plus decode rows, group sum. The middle is C_t without the first k and last w tokens.
//  2. Fire when the middle exceeds T (`reference`) or reaches it (`paper`).
//  3. Old tokens, which an earlier pass kept: every shat-th stays, shat = floor((s+1)/2).
//  4. New tokens, cut into segments of s: the largest A of each segment stays (ties: lowest index).
//  5. All tokens that stay count as old from now on. One pass per step.
//  6. Prompt: one pass (`single`), passes until it fits (`until_fit`), or one pass after every T tokens (`chunked`),
//     whose rows vote with their exact probabilities before it.
// `no_max` keeps the first of each segment instead; `swap` thins old tokens by s and cuts new ones into shat.
struct Buzz {
  static constexpr MethodInfo info{
      .name = "buzz",
      .title = "sinks + segment winners + recent window",
      .source = "BUZZ, Zhao et al. 2024, algorithms 1 and 2 (the released code)",
      .tier = 1,
      .memory = "up to k + w + T tokens, one score each; more after a single pass over a long prompt",
      .deviation =
          "positions stay as recorded; the release re-assigns them (positions: cache). Scores of grouped "
          "query heads are summed; the release mis-groups them.",
  };
  static constexpr Hooks hooks{"observe_prompt read_prompt evict logit_factor observe layout needs traits state"};
  using Variant = theory::Buzz::Variant;
  enum class Mode { local_max, no_max, swap };
  enum class Passes { single, until_fit, chunked, by_variant };
  Variant variant = Variant::reference;
  Mode mode = Mode::local_max;
  Passes passes = Passes::by_variant;
  LogN log_n = LogN::off;
  int32_t sinks = 4, stride = 5, window = kDerived, threshold = kDerived;
  int32_t budget = 0, prompt = 0;
  int64_t most_kept = 0;     // after a step
  Beehive hive;              // steps 2 to 5
  bool prompt_ends = false;  // the next call of evict() is the prompt's
  int32_t listed = 0;
  std::span<double> state;  // where prompt rows are observed: [P] A, [P] listed tokens, [heads, P] scratch

  static void declare(auto& d) {
    d.integer("sinks", &Buzz::sinks, {0, kManyTokens}, "first tokens that always stay");
    d.integer("stride", &Buzz::stride, {3, 1 << 15}, "segment length; below 3 the cache would grow");
    d.integer("window", &Buzz::window, {1, kManyTokens}, "recent window, tokens", "floor((B - sinks)/(1 + rho))");
    d.integer("threshold", &Buzz::threshold, {1, kManyTokens}, "length of the middle at which a pass runs",
              "B - sinks - window");
    d.choice("variant", &Buzz::variant, {"reference", "paper"}, "run a pass above the threshold, or at it");
    d.choice("mode", &Buzz::mode, {"local_max", "no_max", "swap"}, "which tokens of the middle stay");
    d.choice("prefill_passes", &Buzz::passes, {"single", "until_fit", "chunked"}, "passes over the prompt",
             "single; variant paper: until_fit");
    d.choice("log_n", &Buzz::log_n, {"off", "live", "context"}, kLogNHelp);
  }
  void resolve(const MethodContext& context) {
    if (stride < 3)
      throw ParameterError("stride", "stride " + std::to_string(stride) +
                                         " keeps every old token in each pass: the cache would grow; use at least 3");
    budget = context.budget.tokens;
    resolve_sizes();
    if (passes == Passes::by_variant) passes = variant == Variant::paper ? Passes::until_fit : Passes::single;
    prompt = context.prompt_tokens;
    const auto sizes = theory::Buzz::of(sinks, window, stride, threshold, variant);
    hive.window = window, hive.fires_at = int32_t(sizes.fires_at);
    hive.old_step = int32_t(sizes.old_step), hive.new_step = int32_t(sizes.new_step);
    if (mode == Mode::swap) std::swap(hive.old_step, hive.new_step);
    hive.heaviest = mode != Mode::no_max;
    // A single pass over a long prompt may leave more than the budget.
    const theory::Buzz peak{sinks, window, threshold, hive.fires_at, hive.old_step, hive.new_step};
    most_kept = std::max<int64_t>(budget, passes == Passes::single ? peak.peak_kept(prompt) : peak.peak_kept());
  }
  void traits(Traits& t) const {
    t.max_rows = most_kept;
    t.changes_logits = log_n != LogN::off;
  }
  Layout layout(const MethodContext& s) const {
    return {.state_doubles = observes_prompt() ? int64_t(2 + s.shape.heads) * s.prompt_tokens : 0, .scores = true};
  }
  PromptNeeds needs(const MethodContext&) const {
    if (observes_prompt()) return {.rows_from = 0};
    return {.column_sums_from = 0};
  }

  double logit_factor(int32_t rows, int32_t token) const { return log_n_factor(log_n, rows, token); }

  // The multiplied logits vote; ln p equals l up to a constant per row.
  void observe_prompt(const Team auto& team, int32_t t, HeadProbabilities p) {
    const double factor = logit_factor(t + 1, t);
    const auto multiplied = [&](int32_t h, int32_t i) { return factor * std::log(p(h, i)); };
    const auto x = factor == 1 ? p : softmax(team, p, scratch(), multiplied);
    team.each(t + 1, [&](int32_t i) { state[size_t(i)] += x.group(i); });
    if (passes == Passes::chunked) list(team, t);
  }
  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& text, BasicCache<Real>& cache) {
    team.each(cache.size(), [&](int32_t i) {
      const int32_t token = cache.token(i);
      cache.score(i) = observes_prompt() ? state[size_t(token)] : text.column_sum(token);
    });
    prompt_ends = true;
  }
  void observe(const Team auto& team, Cache auto& cache, std::span<const double> p) { accumulate(team, cache, p); }
  void evict(const Team auto& team, Cache auto& cache) {
    const bool of_prompt = prompt_ends;
    prompt_ends = false;
    if (of_prompt && passes == Passes::chunked) return keep_listed(team, cache);
    bool again = true;
    while (again) again = hive.thin(team, cache, sinks) && of_prompt && passes == Passes::until_fit;
  }

 private:
  void resolve_sizes() {
    const bool both = window != kDerived && threshold != kDerived;
    std::string given = "sinks " + std::to_string(sinks);
    if (window != kDerived) given += ", window " + std::to_string(window);
    if (threshold != kDerived) given += ", threshold " + std::to_string(threshold);
    const int64_t room = budget - sinks;
    if (window == kDerived)
      window = int32_t(threshold == kDerived ? theory::buzz_window(room, stride) : room - threshold);
    if (threshold == kDerived) threshold = int32_t(room - window);
    if (window >= 1 && threshold >= 1 && int64_t(window) + threshold == room) return;
    const char* rule = both ? " must add up to a budget of " : " leave too few tokens in a budget of ";
    throw ParameterError(both ? "window" : "sinks",
                         given + rule + std::to_string(budget) + "; change them or raise it");
  }
  bool observes_prompt() const { return log_n != LogN::off || passes == Passes::chunked; }

  // `chunked`: the prompt is not in the cache yet, so its tokens are kept in a list.
  double* listed_tokens() { return state.data() + prompt; }
  double* scratch() { return state.data() + 2 * prompt; }
  void list(const Team auto& team, int32_t t) {
    listed_tokens()[listed] = t;
    ++listed;
    if ((t + 1) % threshold == 0 || t + 1 == prompt)
      listed = hive.thin(team, listed_tokens(), listed, sinks, state.data(), scratch());
  }
  void keep_listed(const Team auto& team, Cache auto& cache) {
    double* stays = scratch();
    team.each(prompt, [&](int32_t i) { stays[i] = 0; });
    team.each(listed, [&](int32_t i) { stays[int32_t(listed_tokens()[i])] = 1; });
    cache.retain(team, [&](int32_t i) { return stays[cache.token(i)] != 0; });
  }
};

}  // namespace kvreplay
