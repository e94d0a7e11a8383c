#pragma once
#include "core/selecting.hpp"

namespace kvreplay {

// SnapKV, Li et al. 2024, section 4: the last prompt rows (the observation window) vote for the prefix.
//  1. s[j] = sum over rows P-w..P-1 and the group of x_row(j), for prefix keys j < P-w.
//  2. Pool s along j with stride 1: `max` ignores positions outside the prefix, `avg` counts them as 0.
//  3. Keep the top B-w of the pooled scores and the w window tokens; later tokens are kept. If B <= w, keep the last B
//     prompt tokens.
// `score` obc_value, obc_key or obc_joint: replaces x by the error of the row's output without the token
// (core/token.hpp). Max pooling makes exact ties at the boundary in most heads: the lower index stays (C8).
struct SnapKv : Selecting<> {
  static constexpr MethodInfo info{
      .name = "snapkv",
      .title = "votes of an observation window",
      .source = "SnapKV, Li et al. 2024, section 4",
      .tier = 1,
      .memory = "B prompt tokens and every later one",
      .deviation =
          "grouped query heads are summed before pooling; the release selects per query head "
          "(gqa.level: query). At least five sets of published defaults exist: see `variant`.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .selects = true,
  };
  static constexpr Hooks hooks{"read_prompt evict layout needs protection voters set_options state"};
  enum class Pool { max, avg, derived };
  enum class When { before, after, derived };
  enum class Variant { standard, kvpress, paper_config, kvfactory, none_pool };
  Variant variant = Variant::standard;
  int32_t window = kDerived, kernel = kDerived;
  Pool pool = Pool::derived;
  When when = When::derived;
  TokenScore score = TokenScore::attention;
  std::span<double> state;  // [heads, P] votes, then [heads, P] pooled votes

  static void declare(auto& d) {
    d.choice("variant", &SnapKv::variant, {"default", "kvpress", "paper_config", "kvfactory", "none_pool"},
             "which set of defaults");
    declare_votes<SnapKv>(d);
    protect<SnapKv>(d);
  }
  template <class M>
  static void declare_votes(auto& d) {
    d.integer("window", static_cast<int32_t M::*>(&M::window), {1, kManyTokens},
              "observation window, prompt rows that vote and stay", "32; kvpress 64, kvfactory 8");
    declare_pooling<M>(d);
    d.choice("score", static_cast<TokenScore M::*>(&M::score), kTokenScores,
             "score that a row adds to a token: its probability, or the error of the output without it");
  }
  template <class M>
  static void declare_pooling(auto& d) {
    d.integer("kernel", static_cast<int32_t M::*>(&M::kernel), {1, kManyTokens},
              "pooling width in tokens, odd; 1 = no pooling", "7; kvpress 5, none_pool 1");
    d.choice("pool", static_cast<Pool M::*>(&M::pool), {"max", "avg"}, "how neighbours share their votes",
             "max; kvpress avg");
    d.choice("when", static_cast<When M::*>(&M::when), {"before", "after"},
             "whether query heads are aggregated before or after pooling", "before; kvpress and paper_config after");
  }
  void resolve(const MethodContext& context) {
    const bool kvpress = variant == Variant::kvpress;
    if (window == kDerived) window = kvpress ? 64 : variant == Variant::kvfactory ? 8 : 32;
    if (kernel == kDerived) kernel = kvpress ? 5 : variant == Variant::none_pool ? 1 : 7;
    if (pool == Pool::derived) pool = kvpress ? Pool::avg : Pool::max;
    if (when == When::derived) when = kvpress || variant == Variant::paper_config ? When::after : When::before;
    if (kernel % 2 == 0) throw even_kernel_error(kernel);
    Selecting::resolve(context, protection());
  }
  static void set_options(const SnapKv& m, CommonOptions& options) {
    if (m.variant == Variant::kvpress || m.variant == Variant::paper_config) options.gqa_aggregate = Aggregate::mean;
  }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = 2 * int64_t(context.shape.heads) * context.prompt_tokens, .scores = true};
  }
  PromptNeeds needs(const MethodContext& context) const {
    return {.column_sums_from = first_voter(context.prompt_tokens), .column_sums_of = score};
  }
  double voters(const MethodContext& context) const {
    const int32_t rows = context.prompt_tokens - first_voter(context.prompt_tokens);
    return double(rows) * (context.aggregate == Aggregate::sum ? context.shape.heads : 1);
  }
  Protect protection() const { return both({sinks, recent}, {.recent = window}); }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const int32_t prefix = cache.size() - window, heads = prompt.shape().heads;
    if (prefix <= 0) return;
    double* votes = state.data();
    const auto vote = [&](int32_t h, int32_t j) { return prompt.column_sum(cache.token(j), h); };
    for (int32_t h = 0; h < heads; ++h)
      team.each(prefix, [&](int32_t j) { votes[int64_t(h) * prefix + j] = vote(h, j); });
    team.each(window, [&](int32_t i) {
      cache.score(prefix + i) = aggregate(prompt.how(), heads, [&](int32_t h) { return vote(h, prefix + i); });
    });
    pool_votes(team, prompt, cache, prefix);
  }
  void evict(const Team auto& team, Cache auto& cache) { cut_by_scores(team, cache, protection()); }

 protected:
  // Computes scores from the votes of each head for the first `prefix` rows of the cache, [heads, prefix].
  template <class Real>
  void pool_votes(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache, int32_t prefix) const {
    const int32_t heads = prompt.shape().heads;
    double *votes = state.data(), *shared = votes + int64_t(heads) * prefix;
    if (when == When::before)
      team.each(prefix, [&](int32_t j) { votes[j] = aggregate(prompt.how(), votes + j, prefix, heads); });
    const int32_t voters = when == When::before ? 1 : heads;
    for (int32_t h = 0; h < voters; ++h)
      team.each(prefix,
                [&](int32_t j) { shared[int64_t(h) * prefix + j] = pooled(votes + int64_t(h) * prefix, j, prefix); });
    team.each(prefix, [&](int32_t j) { cache.score(j) = aggregate(prompt.how(), shared + j, prefix, voters); });
  }

 private:
  int32_t first_voter(int32_t prompt) const { return prompt > window ? prompt - window : 0; }
  double pooled(const double* s, int32_t j, int32_t prefix) const {
    if (pool == Pool::max) return largest_near(s, j, prefix, kernel);
    double sum = 0;
    for (int32_t i = j - kernel / 2; i <= j + kernel / 2; ++i) sum += i >= 0 && i < prefix ? s[i] : 0;
    return sum / kernel;
  }
};

}  // namespace kvreplay
