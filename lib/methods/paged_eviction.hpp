#pragma once
#include "core/cut.hpp"
#include "core/policy.hpp"
#include "methods/parts/fixed_scores.hpp"

namespace kvreplay {

// PagedEviction, 2025: whole pages leave, by the ratio of value and key norms. S_i = ||v_i|| / (||k_i|| + 1e-6).
//  1. Prompt: B' = floor(B / page) page. A longer prompt keeps the top B' tokens of S. Those left, in order of their
//     index, form the pages.
//  2. Decode: tokens fill the last page. As soon as it is full and more than B' / page pages are held, the page of the
//     least mean S leaves, the newest excluded.
// page_heads tied: S is summed over the kv heads of the layer, which hold the same tokens. Nothing protects the first
// tokens, whose values are tiny: errors above 1 are the rule's.
struct PagedEviction {
  static constexpr MethodInfo info{
      .name = "paged_eviction",
      .title = "whole pages, by norms of values and keys",
      .source = "PagedEviction, arXiv 2509.04377",
      .tier = 3,
      .memory = "B' tokens, and at most a page more",
      .deviation = "the newest page is never evicted; equal means: the earlier page stays (the release is silent).",
      .oneshots = false,
      .any_positions = false,
      .joins_heads = true,
      .exact_budget = false,
  };
  static constexpr Hooks hooks{"read_prompt evict layout traits set_options"};
  int32_t page = 16;
  Pages::Heads page_heads = Pages::Heads::tied;
  int32_t most = 0, prompt = 0;  // B', P

  static void declare(auto& d) {
    d.integer("page", &PagedEviction::page, {1, 128}, "tokens a page");
    d.choice("page_heads", &PagedEviction::page_heads, {"own", "tied"}, "whether kv heads evict alone or together");
  }
  void resolve(const MethodContext& context) {
    most = context.budget.tokens / page * page, prompt = context.prompt_tokens;
    if (most < 2 * page)
      throw ParameterError("page", "fewer than two pages of " + std::to_string(page) + " tokens fit into a budget of " +
                                       std::to_string(context.budget.tokens) +
                                       "; make pages smaller or the budget larger");
  }
  static void set_options(const PagedEviction& m, CommonOptions& options) {
    options.serving.pages = {.size = m.page, .evict = Pages::Evict::page, .heads = m.page_heads, .compact = true};
    if (m.page_heads == Pages::Heads::tied) options.gqa_level = GqaLevel::layer;
  }
  void traits(Traits& t) const { t.max_rows = most + page; }
  Layout layout(const MethodContext&) const { return {.scores = true}; }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>&, BasicCache<Real>& cache) {
    score(team, cache, 0);
  }
  void evict(const Team auto& team, Cache auto& cache) {
    const int32_t n = cache.size();
    if (n == 0) return;
    score(team, cache, n - 1);
    const auto s = [&](int32_t i) { return cache.score(i); };
    if (n <= most) return;
    if (cache.token(n - 1) < prompt) return keep_best(team, cache, {}, most, s);
    if (n % page != 0) return;
    const auto leaves = team.smallest(
        n / page - 1, [&](int32_t g) { return page_score(Pages::Score::mean, g * page, (g + 1) * page, s); });
    const int32_t first = leaves.index * page;
    cache.retain(team, [&](int32_t i) { return i < first || i >= first + page; });
  }

 private:
  // S of the rows from `first` on, summed over the kv heads of the cache.
  void score(const Team auto& team, Cache auto& cache, int32_t first) const {
    team.each(cache.size() - first, [&](int32_t i) {
      double sum = 0;
      for (int32_t b = 0; b < cache.shape().blocks; ++b) sum += norm_ratio(cache, first + i, b);
      cache.score(first + i) = sum;
    });
  }
};

}  // namespace kvreplay
