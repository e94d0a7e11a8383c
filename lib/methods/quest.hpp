#pragma once
#include <cmath>

#include "core/policy.hpp"
#include "core/vectors.hpp"

namespace kvreplay {

// Quest, Tang et al. 2024, section 3: reads the pages that could hold the largest inner products.
//  1. Per page of `page` consecutive tokens, channel-wise minimum and maximum of the keys, kept up to date as tokens
//     arrive: the newest page competes with its true extremes.
//  2. Page score = sum over channels of max(q_c min_c, q_c max_c), an upper bound of <q, k> in the page.
//  3. Read exactly the tokens of the max(3, floor(B / page)) best pages; of all pages if B >= n.
struct Quest {
  static constexpr MethodInfo info{
      .name = "quest",
      .title = "pages with the best bounds",
      .source = "Quest, Tang et al. 2024, section 3",
      .tier = 2,
      .memory = "the full cache and the extremes of its pages; the budget bounds what is read",
      .deviation = "with gqa.level kv the bound is summed over the group.",
      .oneshots = false,
      .any_positions = false,
      .implied_layout = true,
      .reads_full_cache = true,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{"read_prompt append choose token_score extra_bytes layout traits set_options state"};
  static constexpr int32_t kFewestPages = 3;
  int32_t page = 16;
  LayerSet dense_layers{{0b11}};
  int32_t budget = 0, tokens = 0;
  bool dense = false;
  std::span<double> state;  // [blocks, pages, 2, dim] extremes, then [pages] bounds, [pages] chosen

  static void declare(auto& d) {
    d.integer("page", &Quest::page, {1, kManyTokens}, "tokens per page");
    d.layers("dense_layers", &Quest::dense_layers, "layers that read everything");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens;
    tokens = context.tokens;
    dense = dense_layers.has(context.layer);
  }
  static void set_options(const Quest&, CommonOptions& options) { options.gqa_level = GqaLevel::query; }
  Layout layout(const MethodContext& context) const {
    if (dense) return {};
    return {.state_doubles = int64_t(pages()) * (2 * int64_t(context.shape.dim) * context.shape.blocks + 2)};
  }
  void traits(Traits& t) const { t.max_rows_read = dense || read_pages() >= pages() ? tokens : read_pages() * page; }
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    if (dense || cache.size() == 0) return;
    const int64_t held = page_of(cache, cache.size() - 1) - page_of(cache, 0) + 1;
    c.sketch_floats = 2 * held * cache.shape().dim * cache.shape().blocks;
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>&, BasicCache<Real>& cache) {
    for (int32_t i = 0; i < cache.size(); ++i) widen(team, cache, i);
  }
  template <class Real>
  void append(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    cache.push(token);
    widen(team, cache, cache.size() - 1);
  }
  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen) {
    const int32_t rows = cache.size();
    if (dense) {
      team.each(rows * queries.heads, [&](int32_t i) { chosen[i] = 1; });
      return;
    }
    const int32_t first = page_of(cache, 0), held = page_of(cache, rows - 1) - first + 1;
    const std::span<double> bounds = state.last(2 * size_t(pages())), read = state.last(size_t(pages()));
    team.each(held, [&](int32_t p) { bounds[size_t(p)] = bound(cache.shape(), queries, first + p); });
    choose_top(
        team, held, read_pages(), [&](int32_t p) { return bounds[size_t(p)]; },
        [&](int32_t p, bool yes) { read[size_t(p)] = yes ? 1 : 0; });
    for (int32_t h = 0; h < queries.heads; ++h)
      team.each(rows, [&](int32_t i) {
        chosen[int64_t(h) * rows + i] = read[size_t(page_of(cache, i) - first)] != 0 ? 1 : 0;
      });
  }
  double token_score(const auto& cache, int32_t row) const {
    return dense ? INFINITY : state.last(2 * size_t(pages()))[size_t(page_of(cache, row) - page_of(cache, 0))];
  }

 protected:
  int32_t pages() const { return (tokens - 1) / page + 1; }

 private:
  int32_t read_pages() const {
    if (budget >= tokens) return pages();  // includes a last page that is not full
    return budget / page > kFewestPages ? budget / page : kFewestPages;
  }
  int32_t page_of(const auto& cache, int32_t row) const { return cache.token(row) / page; }
  double* extremes(int32_t block, int32_t p, int32_t dim) const {
    return &state[size_t(2 * (int64_t(block) * pages() + p) * dim)];
  }
  // Adds a row to the extremes of its page; the first row of a page initialises them.
  void widen(const Team auto& team, const auto& cache, int32_t row) {
    const int32_t dim = cache.shape().dim, p = page_of(cache, row);
    const bool opens = row == 0 || page_of(cache, row - 1) != p;
    if (dense) return;
    for (int32_t b = 0; b < cache.shape().blocks; ++b) {
      double *low = extremes(b, p, dim), *high = low + dim;
      const auto key = cache.key(row, b);
      team.each(dim, [&](int32_t c) {
        const double x = double(key[size_t(c)]);
        low[c] = opens || x < low[c] ? x : low[c];
        high[c] = opens || x > high[c] ? x : high[c];
      });
    }
  }
  // Upper bound of <q, k> over the page's tokens, summed over the query heads.
  template <class Real>
  double bound(const HeadShape& shape, const StepQueries<Real>& queries, int32_t p) const {
    double s = 0;
    for (int32_t h = 0; h < queries.heads; ++h) {
      const double *low = extremes(shape.block_of(h), p, shape.dim), *high = low + shape.dim;
      const auto q = queries(h);
      for (int32_t c = 0; c < shape.dim; ++c) {
        const double a = double(q[size_t(c)]) * low[c], b = double(q[size_t(c)]) * high[c];
        s += a > b ? a : b;
      }
    }
    return s;
  }
};

}  // namespace kvreplay
