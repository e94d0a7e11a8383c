#pragma once
#include <cmath>

#include "core/policy.hpp"
#include "methods/snapkv.hpp"

namespace kvreplay {

// Pages of neighbouring rows, scored by a few channels in the direction of a group's queries (methods/rocketkv.hpp,
// stage 2).
struct SignedPages {
  std::span<double> sign;  // [dim] sign of the group's sum; 0 for channels that are not used
  int32_t page;            // rows per page

  // Chooses the `count` channels with the largest sum of |q_c| over the group.
  template <class Real>
  void choose_channels(const Team auto& team, const StepQueries<Real>& queries, int32_t count) const {
    const auto sum = [&](int32_t c, bool lengths) {
      double s = 0;
      for (int32_t h = 0; h < queries.heads; ++h) {
        const double q = double(queries(h)[size_t(c)]);
        s += lengths ? std::abs(q) : q;
      }
      return s;
    };
    choose_top(
        team, queries.dim, count, [&](int32_t c) { return sum(c, true); },
        [&](int32_t c, bool yes) { sign[size_t(c)] = !yes                ? 0
                                                     : sum(c, false) > 0 ? 1
                                                                         : -1; });
  }
  // sqrt(d times the share of |q| in the chosen channels).
  template <class Real>
  double temperature(std::span<const Real> query) const {
    double counted = 0, all = 0;
    for (size_t c = 0; c < sign.size(); ++c) {
      const double length = std::abs(double(query[c]));
      all += length, counted += sign[c] != 0 ? length : 0;
    }
    return counted > 0 ? std::sqrt(double(sign.size()) * counted / all) : 1;
  }
  template <class Real>
  double score(const BasicCache<Real>& cache, std::span<const Real> query, int32_t of_page) const {
    const int32_t first = of_page * page, end = first + page < cache.size() ? first + page : cache.size();
    double s = 0;
    for (size_t c = 0; c < sign.size(); ++c) {
      if (sign[c] == 0) continue;
      double most = sign[c] * double(cache.key(first)[c]);
      for (int32_t i = first + 1; i < end; ++i) {
        const double x = sign[c] * double(cache.key(i)[c]);
        most = x > most ? x : most;
      }
      s += sign[c] * double(query[c]) * most;
    }
    return s;
  }
};

// RocketKV, Behnam et al. 2025, section 3: a coarse cut of the prompt, then hybrid sparse attention in every step.
//  1. Stage 1: SnapKV to `stage1` tokens, permanently. With c = max(1, P/B), r = min(0.2 + 0.06 log2 c, 0.8): cap =
//     floor(P / c^r), at least min(2 (n-P), P); stage1 = cap - (n-P).
//  2. Stage 2, over the L live tokens, c2 = max(1, cap/B): pages of ceil(sqrt(c2)) neighbours (1 if that exceeds c2).
//     sign_c = the sign of the group's sum of q_c; a page's vector = largest sign_c k_c of its tokens. The floor(d page
//     / c2) channels of largest mean |q_c| are used: s = sum over them of sign_c q_c page_c.
//  3. Softmax of s / sqrt(d sum of the channels' |q_c| / sum |q_c|) over tokens, each with its page's s, mean over the
//     group; exact attention to the top floor(B/2) tokens.
// In a group whose queries differ in sign a page's value is no bound.
struct RocketKv : SnapKv {
  static constexpr MethodInfo info{
      .name = "rocketkv",
      .title = "one coarse cut, then pages of few channels",
      .source = "RocketKV, Behnam et al. 2025, section 3 (stage 2 as the release runs it)",
      .tier = 2,
      .memory = "the tokens of stage 1, every later one, and two vectors per page; the budget bounds what is read",
      .deviation =
          "the number of tokens after the prompt, an argument of the release, comes from the trace; stage 1 keeps at "
          "least its window and one more token, or the whole prompt if it fits the budget.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .reads_full_cache = true,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{
      "read_prompt evict choose extra_bytes report layout needs traits protection voters set_options state"};
  int32_t stage1 = kDerived, prompt = 0, room = 0;
  double ratio = 1;  // c2

  static void declare(auto& d) {
    d.integer("window", static_cast<int32_t RocketKv::*>(&RocketKv::window), {1, kManyTokens},
              "observation window of stage 1, prompt rows that vote and stay", "32");
    d.integer("kernel", static_cast<int32_t RocketKv::*>(&RocketKv::kernel), {1, kManyTokens},
              "pooling width of stage 1 in tokens, odd", "63");
    d.integer("stage1", &RocketKv::stage1, {1, kManyTokens}, "tokens that stage 1 keeps",
              "from the ratio of prompt and budget");
  }
  void resolve(const MethodContext& context) {
    if (kernel == kDerived) kernel = 63;
    SnapKv::resolve(context);
    prompt = context.prompt_tokens, room = context.tokens;
    const int32_t later = context.tokens - context.prompt_tokens;
    const double read = std::max(1, context.budget.tokens), c = std::max(1.0, prompt / read);
    const double r = std::min(0.2 + 0.06 * std::log2(c), 0.8);
    const int32_t cap = std::max(int32_t(std::floor(prompt / std::pow(c, r))), std::min(2 * later, prompt));
    if (stage1 == kDerived) stage1 = std::max(cap - later, window + 1);
    ratio = std::max(1.0, cap / read);
  }
  static void set_options(const RocketKv&, CommonOptions&) {}
  void traits(Traits& t) const {
    t.holds_all = false;
    t.max_rows = prompt <= budget ? room : std::min<int64_t>(room, int64_t(stage1) + room - prompt);
    t.max_rows_read = read_tokens();
  }
  PromptNeeds needs(const MethodContext& context) const {
    PromptNeeds all = SnapKv::needs(context);
    all.whole = true;
    return all;
  }
  Layout layout(const MethodContext& context) const {
    Layout all = SnapKv::layout(context);
    all.state_doubles = std::max(all.state_doubles, int64_t(context.shape.dim) + 3 * int64_t(context.tokens));
    return all;
  }
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    const int64_t pages = (cache.size() + page() - 1) / page();
    c.sketch_floats = 2 * pages * cache.shape().dim, c.sketch_floats_read = pages * channels(cache.shape().dim);
  }
  void report(auto& extras, const auto&) const {
    extras["stage1_tokens"] = stage1;
    extras["page"] = page();
  }
  void evict(const Team auto& team, Cache auto& cache) {
    if (prompt <= budget || cache.token(cache.size() - 1) >= prompt || cache.size() <= stage1) return;
    keep_scored(team, cache, protection(), stage1);
  }
  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen) {
    const int32_t rows = cache.size();
    const std::span<double> scores = column(0, rows), softened = column(1, rows), of_page = column(2, rows);
    const SignedPages pages{state.first(size_t(queries.dim)), page()};
    pages.choose_channels(team, queries, channels(queries.dim));
    team.each(rows, [&](int32_t i) { scores[size_t(i)] = 0; });
    for (int32_t h = 0; h < queries.heads; ++h) {
      const double temperature = pages.temperature(queries(h));
      team.each((rows + page() - 1) / page(),
                [&](int32_t p) { of_page[size_t(p)] = pages.score(cache, queries(h), p) / temperature; });
      team.each(rows, [&](int32_t i) { softened[size_t(i)] = of_page[size_t(i / page())]; });
      softmax(team, softened);
      team.each(rows, [&](int32_t i) { scores[size_t(i)] += softened[size_t(i)] / queries.heads; });
    }
    choose_top(
        team, rows, read_tokens(), [&](int32_t i) { return scores[size_t(i)]; },
        [&](int32_t i, bool yes) {
          for (int32_t h = 0; h < queries.heads; ++h) chosen[int64_t(h) * rows + i] = yes ? kRead : kUnread;
        });
  }

 private:
  int32_t read_tokens() const { return budget / 2 > 1 ? budget / 2 : 1; }
  int32_t page() const {
    const double side = std::ceil(std::sqrt(ratio));
    return side > ratio ? 1 : int32_t(side);
  }
  int32_t channels(int32_t dim) const {
    const int32_t count = int32_t(std::floor(dim * page() / ratio));
    return count > 1 ? count < dim ? count : dim : 1;
  }
  std::span<double> column(size_t which, int32_t rows) const {
    return state.last(3 * size_t(room)).subspan(which * size_t(room), size_t(rows));
  }
};

}  // namespace kvreplay
