#pragma once
#include <vector>

#include "core/cut.hpp"
#include "core/policy.hpp"
#include "core/vectors.hpp"

namespace kvreplay {

// Block eviction of OpenVINO GenAI: whole pages leave, the same in every kv head of a layer, by accumulated attention.
//  1. A call is the prompt's last `window` rows, or one decode step. m_j = sum over its rows and all query heads of the
//     layer, for tokens behind the sinks; m'_j = largest of m_j .. m_{j+kernel-1}, neighbours in the cache. A += m'.
//  2. Page score = sum of A_j; norm_sum: of A_j divided by the number of rows of the calls that saw j.
//  3. Keep the pages of the sinks, of the recent tokens, and the best others, until floor(B / page) - crush are full.
//  4. KVCrush: of the tokens of all unprotected pages the larger half by A gets bit 1. Pages that would leave are
//  sorted
//     by the Hamming distance of their bits to an anchor; `crush` of them, evenly spaced, stay.
struct BlockEviction {
  static constexpr MethodInfo info{
      .name = "block_eviction",
      .title = "whole pages of a layer, by accumulated attention",
      .source = "OpenVINO GenAI, cache_eviction.cpp; KVCrush, Jha et al. 2025 (arXiv 2503.00022)",
      .tier = 2,
      .memory = "B tokens and the page that is filled; a score and a count per token, shared by the layer",
      .deviation =
          "the pages that KVCrush keeps count inside the budget (release: above it); the random anchor is left out.",
      .oneshots = false,
      .any_positions = false,
      .exact_budget = false,
  };
  static constexpr Hooks hooks{"read_prompt evict observe extra_bytes layout needs traits set_options state"};
  enum class Sum { sum, norm_sum };
  enum class Anchor { alternating, mean, zeros, ones };
  int32_t page = 16, sinks = 32, recent = 128, window = 8, kernel = 7, crush = 0;
  Sum aggregate = Sum::sum;
  Anchor anchor = Anchor::alternating;
  CutPlan plan;
  std::span<double> state;  // [tokens] what a call adds

  static void declare(auto& d) {
    d.integer("page", &BlockEviction::page, {1, 128}, "tokens a page (release: 32 on a CPU)");
    d.integer("sinks", &BlockEviction::sinks, {0, kManyTokens}, "first tokens that always stay, a multiple of page");
    d.integer("recent", &BlockEviction::recent, {0, kManyTokens}, "last tokens that always stay, a multiple of page");
    d.choice("aggregate", &BlockEviction::aggregate, {"sum", "norm_sum"},
             "norm_sum: divided by the rows that saw a token");
    d.integer("window", &BlockEviction::window, {0, kManyTokens}, "last prompt rows that vote; 0: all");
    d.integer("kernel", &BlockEviction::kernel, {1, kManyTokens}, "tokens whose largest vote counts, to the right");
    d.integer("crush", &BlockEviction::crush, {0, kManyTokens}, "pages that stay for their bits");
    d.choice("anchor", &BlockEviction::anchor, {"alternating", "mean", "zeros", "ones"},
             "bits that pages are compared with");
  }
  void resolve(const MethodContext& context) {
    for (const auto& [name, tokens] : {std::pair{"sinks", sinks}, std::pair{"recent", recent}})
      if (tokens % page != 0)
        throw ParameterError(name, std::string(name) + " " + std::to_string(tokens) + " is not a multiple of page " +
                                       std::to_string(page) + "; whole pages are protected");
    MethodContext own = context;
    own.serving.pages = {.size = page, .evict = Pages::Evict::page};
    plan = cut_plan(own, {.sinks = sinks, .recent = recent});
    const int32_t open = plan.pages(plan.budget) - (sinks + recent) / page;
    if (crush > 0 && crush > open)
      throw ParameterError("crush", "crush " + std::to_string(crush) + " exceeds the " + std::to_string(open) +
                                        " unprotected pages of the budget of " + std::to_string(plan.budget) +
                                        "; make it smaller or the budget larger");
  }
  static void set_options(const BlockEviction& m, CommonOptions& options) {
    options.gqa_level = GqaLevel::layer;
    options.serving.pages = {
        .size = m.page, .evict = Pages::Evict::page, .score = Pages::Score::sum, .heads = Pages::Heads::tied};
  }
  void traits(Traits& t) const { t.max_rows = int64_t(plan.budget) / page * page + page; }
  Layout layout(const MethodContext& context) const { return {.state_doubles = context.tokens, .scores = true}; }
  PromptNeeds needs(const MethodContext& context) const {
    return {.column_sums_from = first_voter(context.prompt_tokens)};
  }
  void extra_bytes(ExtraBytes& c, const auto& cache) const { c.mark_bytes = 4 * int64_t(cache.size()); }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    add_call(team, cache, [&](int32_t i) { return prompt.column_sum(cache.token(i)); });
  }
  void observe(const Team auto& team, Cache auto& cache, std::span<const double> p) {
    add_call(team, cache, [&](int32_t i) { return p[size_t(i)]; });
  }
  void evict(const Team auto& team, Cache auto& cache) {
    if (cache.size() == 0) return;
    const int32_t t = cache.token(cache.size() - 1), left = plan.pages(plan.budget);
    HeldPages pages(cache, page, {.sinks = sinks, .recent = recent}, 0);
    if (pages.full() <= left) return;
    const auto score = [&](int32_t i) {
      return aggregate == Sum::sum ? cache.score(i) : cache.score(i) / rows_that_saw(cache.token(i), t);
    };
    pages.choose(team, left - crush,
                 [&](const HeldPage& g) { return page_score(Pages::Score::sum, g.first, g.last, score); });
    if (crush > 0) keep_by_bits(team, cache, pages);
    pages.retain(team, cache);
  }

 private:
  int32_t first_voter(int32_t prompt) const { return window == 0 || prompt < window ? 0 : prompt - window; }
  double rows_that_saw(int32_t token, int32_t t) const {
    return ScoreRule::seen_by(token, first_voter(plan.prompt), t);
  }
  // Step 1.
  void add_call(const Team auto& team, Cache auto& cache, auto votes) const {
    const int32_t n = cache.size(), first = held_sinks(cache, sinks);
    team.each(n, [&](int32_t i) { state[size_t(i)] = votes(i); });
    team.each(n - first, [&](int32_t k) {
      const int32_t i = first + k, last = n - i < kernel ? n : i + kernel;
      double most = state[size_t(i)];
      for (int32_t j = i; j < last; ++j) most = state[size_t(j)] > most ? state[size_t(j)] : most;
      cache.score(i) += most;
    });
  }
  // Step 4.
  void keep_by_bits(const Team auto& team, const Cache auto& cache, HeldPages& pages) const {
    std::vector<HeldPage*> open;  // unprotected, by index
    for (HeldPage& g : pages.all())
      if (g.is_open()) open.push_back(&g);
    const int32_t count = int32_t(open.size()), tokens = count * page;
    std::vector<uint8_t> bits(size_t(tokens), 0);
    choose_top(
        team, tokens, tokens / 2, [&](int32_t i) { return cache.score(open[size_t(i / page)]->first + i % page); },
        [&](int32_t i, bool yes) { bits[size_t(i)] = yes ? 1 : 0; });
    const auto of_anchor = [&](int32_t c) {
      if (anchor != Anchor::mean) return anchor == Anchor::alternating ? c % 2 : anchor == Anchor::ones ? 1 : 0;
      int32_t ones = 0;
      for (int32_t g = 0; g < count; ++g) ones += bits[size_t(g * page + c)];
      return 2 * ones > count ? 1 : 0;
    };
    std::vector<std::pair<int32_t, HeldPage*>> leaving;  // distance, page
    for (int32_t g = 0; g < count; ++g) {
      int32_t distance = 0;
      for (int32_t c = 0; c < page; ++c) distance += bits[size_t(g * page + c)] != of_anchor(c) ? 1 : 0;
      if (!open[size_t(g)]->stays) leaving.emplace_back(distance, open[size_t(g)]);
    }
    std::stable_sort(leaving.begin(), leaving.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    const size_t step = std::max<size_t>(1, leaving.size() / size_t(crush));
    for (size_t i = 0, kept = 0; i < leaving.size() && kept < size_t(crush); i += step, ++kept)
      leaving[i].second->stays = true;
  }
};

}  // namespace kvreplay
