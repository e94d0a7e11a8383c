#pragma once
#include "methods/parts/step_scores.hpp"

namespace kvreplay {

// FastGen, Ge et al. 2023, "Model tells you what to discard", algorithms 1 and 2: each head takes the cheapest of five
// policies that would have kept enough of the prompt's attention.
//  1. Candidates in order of cost: special tokens; + punctuation; + the top heavy_frac*P by accumulated attention; +
//     the last local_frac*P; everything.
//  2. End of the prompt: the first candidate whose mean kept mass over the prompt rows is at least `recovery`.
//  3. Decode: the chosen policy is enforced after every step.
// The number of kept tokens is an output.
struct FastGen {
  static constexpr MethodInfo info{
      .name = "fastgen",
      .title = "a policy for each head, chosen by the prompt",
      .source = "FastGen, Ge et al. 2023, algorithms 1 and 2",
      .tier = 2,
      .memory = "what the chosen policy keeps: one score and one class (1 byte) each",
      .deviation =
          "a candidate is judged by the tokens it keeps at the end of the prompt. Heavy hitters are the "
          "top of all held tokens, the protected ones included.",
      .takes_budget = false,
  };
  static constexpr Hooks hooks{"read_prompt evict append observe extra_bytes report layout needs state"};
  enum Candidate : int32_t { special, punctuation, heavy, local, full };
  double recovery = 0.95, local_frac = 0.3, heavy_frac = 0.3;
  int32_t sinks = 0, recent = 0;
  int32_t prompt = 0;
  Candidate chosen = full;
  double recovered = 1;
  std::span<double> state;  // [tokens] text class

  static void declare(auto& d) {
    d.real("recovery", &FastGen::recovery, {1e-6, 1}, "share of the prompt's attention that a policy must keep");
    d.real("local_frac", &FastGen::local_frac, {1e-6, 1}, "local window as a share of the prompt's length");
    d.real("heavy_frac", &FastGen::heavy_frac, {1e-6, 1}, "heavy hitters as a share of the prompt's length");
    d.integer("sinks", &FastGen::sinks, {0, kManyTokens}, "first tokens that every policy keeps");
    d.integer("recent", &FastGen::recent, {0, kManyTokens}, "last tokens that every policy keeps");
  }
  void resolve(const MethodContext& context) { prompt = context.prompt_tokens; }
  Layout layout(const MethodContext& context) const { return {.state_doubles = context.tokens, .scores = true}; }
  PromptNeeds needs(const MethodContext&) const { return {.column_sums_from = 0, .token_classes = true}; }
  void extra_bytes(ExtraBytes& c, const auto& cache) const { c.mark_bytes = cache.size(); }
  void report(auto& extras, const auto&) const {
    extras["candidate"] = chosen;
    extras["recovered_mass"] = recovered;
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& text, BasicCache<Real>& cache) {
    team.each(cache.size(), [&](int32_t i) {
      const int32_t token = cache.token(i);
      cache.score(i) = text.column_sum(token);
      state[size_t(token)] = double(text.token_class(token));
    });
  }
  template <class Real>
  void append(const Team auto&, const Token<Real>& token, BasicCache<Real>& cache) {
    state[size_t(token.index)] = double(token.text_class);
    cache.push(token);
  }
  void observe(const Team auto& team, Cache auto& cache, std::span<const double> p) { accumulate(team, cache, p); }
  void evict(const Team auto& team, Cache auto& cache) {
    if (cache.token(cache.size() - 1) == prompt - 1) choose(team, cache);
    if (chosen == full) return;
    mark(team, cache, chosen);
    cache.retain(team, [&](int32_t i) { return cache.mark(i) != 0; });
  }

 private:
  // The mean kept mass over the prompt rows equals the candidate's share of the accumulated attention.
  void choose(const Team auto& team, Cache auto& cache) {
    const double all = team.sum(cache.size(), [&](int32_t i) { return cache.score(i); });
    for (chosen = special; chosen < full; chosen = Candidate(chosen + 1)) {
      mark(team, cache, chosen);
      recovered = team.sum(cache.size(), [&](int32_t i) { return cache.mark(i) ? cache.score(i) : 0.0; }) / all;
      if (recovered >= recovery) return;
    }
    recovered = 1;
  }
  // Marks the tokens of the cache that a candidate keeps.
  void mark(const Team auto& team, Cache auto& cache, Candidate candidate) const {
    const int32_t rows = cache.size(), newest = cache.token(rows - 1);
    const int32_t top = candidate >= heavy ? int32_t(heavy_frac * prompt) : 0;
    const int32_t window = candidate >= local ? int32_t(local_frac * prompt) : 0;
    choose_top(
        team, rows, top, [&](int32_t i) { return cache.score(i); },
        [&](int32_t i, bool yes) { cache.mark(i) = yes ? 1 : 0; });
    team.each(rows, [&](int32_t i) {
      const int32_t token = cache.token(i);
      const auto text = TokenClass(int32_t(state[size_t(token)]));
      const bool by_text = text == TokenClass::special || (candidate >= punctuation && text == TokenClass::punctuation);
      if (by_text || token > newest - window || token < sinks || i >= rows - recent) cache.mark(i) = 1;
    });
  }
};

}  // namespace kvreplay
