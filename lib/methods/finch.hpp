#pragma once
#include "core/selecting.hpp"

namespace kvreplay {

// FINCH, Corallo and Papotti 2024 (TACL): keeps the tokens before the question that the question attends to.
//  1. s[j] = mean over the question's rows (the last `window` of the prompt) of n_i x_i(j), summed over the group. n_i
//     is the number of keys that row i sees; it makes up for the smaller probabilities of rows that see more.
//  2. No pooling. The tokens before the question are cut into `chunks` consecutive parts of equal length, and each part
//     keeps the same share of its tokens by s; the question stays.
//  3. The kept tokens move together (`positions: cache`).
struct Finch : Selecting<> {
  static constexpr MethodInfo info{
      .name = "finch",
      .title = "votes of the question, re-numbered",
      .source = "FINCH, Corallo and Papotti 2024 (TACL), section 3 (as kvpress's finch_press)",
      .tier = 3,
      .memory = "B prompt tokens and every later one",
      .deviation =
          "chunks are cut from one pass over the whole prompt, where the paper reads a chunk after the tokens kept of "
          "those before; a row's keys include its own (kvpress: one less).",
      .streams = false,
      .default_phase = Phase::oneshot,
      .default_positions = Positions::cache,
      .selects = true,
  };
  static constexpr Hooks hooks{"observe_prompt read_prompt evict layout needs protection state"};
  int32_t window = kDerived, chunks = 1;
  bool reading = false;  // rows are voting
  LayerWindow of_layer;
  std::span<double> state;  // [P] s

  static void declare(auto& d) {
    d.integer_or_word(
        "window", &Finch::window, {1, kManyTokens}, "question",
        "last tokens of the prompt, which vote and stay; question: those from the trace's question_from on",
        "question if the trace marks it, else 32");
    d.integer("chunks", &Finch::chunks, {1, kManyTokens},
              "parts of the text before the question, each of which keeps the same share");
    protect<Finch>(d);
  }
  void resolve(const MethodContext& context) {
    of_layer = context.window;
    const int32_t question = context.question_tokens;
    if (window == kWord && question == 0)
      throw ParameterError("window",
                           "window: question, but the trace does not record where the question of a prompt of " +
                               std::to_string(context.prompt_tokens) +
                               " tokens begins; write the prompt's attribute question_from (docs/formats.md), or "
                               "window as a number of tokens");
    if (window == kWord || (window == kDerived && question > 0)) window = question;
    if (window == kDerived) window = 32;
    Selecting::resolve(context, protection());
  }
  Layout layout(const MethodContext& context) const { return {.state_doubles = context.prompt_tokens, .scores = true}; }
  PromptNeeds needs(const MethodContext& context) const { return {.rows_from = first_voter(context.prompt_tokens)}; }
  Protect protection() const { return both({sinks, recent}, {.recent = window}); }

  void observe_prompt(const Team auto& team, int32_t t, HeadProbabilities x) {
    const int32_t seen = x.seen >= 0 ? x.seen : of_layer.seen(t);
    if (!reading) team.each(int32_t(state.size()), [&](int32_t j) { state[size_t(j)] = 0; });
    reading = true;
    team.each(x.rows, [&](int32_t j) { state[size_t(j)] += x.group(j) * seen; });
  }
  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const int32_t rows = prompt.size() < window ? prompt.size() : window;
    team.each(cache.size(), [&](int32_t i) { cache.score(i) = state[size_t(cache.token(i))] / rows; });
    reading = false;
  }
  void evict(const Team auto& team, Cache auto& cache) {
    const Protect safe = protection();
    const int32_t first = held_sinks(cache, safe.sinks), n = cache.size() - first - safe.recent,
                  count = budget - first - safe.recent;
    if (chunks == 1 || count <= 0 || n <= count) return cut_by_scores(team, cache, safe);
    team.each(cache.size(), [&](int32_t i) { cache.mark(i) = 1; });
    for (int64_t c = 0; c < chunks; ++c) {
      const int32_t begin = int32_t(c * n / chunks), end = int32_t((c + 1) * n / chunks);
      const auto up_to = [&](int32_t last) { return int64_t(last) * count / n; };
      choose_top(
          team, end - begin, int32_t(up_to(end) - up_to(begin)),
          [&](int32_t i) { return cache.score(first + begin + i); },
          [&](int32_t i, bool yes) { cache.mark(first + begin + i) = yes ? 1 : 0; });
    }
    cache.retain(team, [&](int32_t i) { return cache.mark(i) != 0; });
  }

 private:
  int32_t first_voter(int32_t seen) const { return seen > window ? seen - window : 0; }
};

}  // namespace kvreplay
