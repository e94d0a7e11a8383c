#pragma once
#include "core/softmax.hpp"
#include "core/vectors.hpp"
#include "methods/snapkv.hpp"

namespace kvreplay {

// LAQ, Wang et al. 2025 (Lookahead Q-Cache): SnapKV whose observation window is the queries that are generated next, so
// that a cut sees the attention of decoding.
//  1. s[j] = sum over `lookahead` rows and the group of x_row(j), for all prompt tokens j.
//  2. Pool s as SnapKV does.
//  3. Keep the top B; later tokens are kept.
// The rows are recorded rows of the trace, P..P+lookahead-1, with the keys that were added meanwhile. In this form the
// method SEES THE FUTURE, and the rows it has seen are not measured: errors begin at row P+lookahead. With `generated`
// the rows are the paper's: the first ones that the model generated from a cache that SnapKV had cut (`kvreplay record
// --lookahead`). The trace holds only the queries of these rows, so their softmax is over the prompt's tokens. Then the
// method sees nothing of the future, and every row is measured.
struct Laq : SnapKv {
  static constexpr MethodInfo info{
      .name = "laq",
      .title = "votes of the next rows: recorded ones (sees 8 future rows), or generated ones",
      .source = "Lookahead Q-Cache, Wang et al. 2025 (arXiv 2505.20334)",
      .tier = 3,
      .memory = "B prompt tokens and every later one",
      .deviation =
          "looks at the next recorded rows, while the paper generates them from a cache that snapkv has cut. "
          "It is an oracle, measured from the first row that it has not seen. With `generated` the rows are the "
          "paper's, from a cut that kvreplay record --lookahead made once (256 tokens a kv head by default) whatever "
          "the budget "
          "here, and their own keys take no part in the softmax.",
      .streams = false,
      .default_phase = Phase::oneshot,
  };
  static constexpr Hooks hooks{"read_prompt evict report layout needs protection voters set_options state"};
  int32_t lookahead = 8;
  bool generated = false;

  static void declare(auto& d) {
    d.integer("lookahead", &Laq::lookahead, {1, kManyTokens},
              "rows after the prompt that vote; recorded rows that vote are not measured");
    d.boolean("generated", &Laq::generated,
              "rows that were generated from a cut cache (kvreplay record --lookahead) vote");
    declare_pooling<Laq>(d);
    protect<Laq>(d);
  }
  void resolve(const MethodContext& context) {
    window = 0;
    SnapKv::resolve(context);
    const int32_t later = context.tokens - context.prompt_tokens;
    if (!generated && lookahead >= later)
      throw ParameterError("lookahead",
                           "lookahead " + std::to_string(lookahead) + " leaves none of the " + std::to_string(later) +
                               " rows after the prompt to measure; use a trace "
                               "of at least " +
                               std::to_string(lookahead + 1) + ", a shorter prompt (prefill) or a smaller lookahead");
  }
  PromptNeeds needs(const MethodContext& context) const {
    if (generated) return {.lookahead = lookahead};
    return {.column_sums_from = context.prompt_tokens, .rows_ahead = lookahead};
  }
  double voters(const MethodContext& context) const {
    return double(lookahead) * (context.aggregate == Aggregate::sum ? context.shape.heads : 1);
  }
  void report(auto& extras, const auto&) const {
    if (!generated) extras["sees_future"] = 1;
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    if (!generated) return SnapKv::read_prompt(team, prompt, cache);
    const int32_t rows = cache.size(), group = prompt.shape().heads / prompt.shape().blocks;
    for (int32_t b = 0; b < prompt.shape().blocks; ++b) {
      const Prompt<Real> own = prompt.block(b);
      for (int32_t h = 0; h < group; ++h) count_votes(team, own, h, cache, int64_t(b * group + h) * rows);
    }
    pool_votes(team, prompt, cache, rows);
  }

 private:
  // Writes the votes of one query head of a kv head to state[at..]. The place of the later pooled votes is used as
  // scratch for a row's probabilities.
  template <class Real>
  void count_votes(const Team auto& team, const Prompt<Real>& prompt, int32_t head, const BasicCache<Real>& cache,
                   int64_t at) const {
    const std::span<double> votes = state.subspan(size_t(at), size_t(cache.size())),
                            p = state.last(state.size() / 2).first(size_t(prompt.size()));
    team.each(cache.size(), [&](int32_t j) { votes[size_t(j)] = 0; });
    for (int32_t row = 0; row < lookahead; ++row) {
      const auto query = prompt.lookahead_query(head, row);
      const auto logit = [&](int32_t i) { return prompt.logit(wide_dot(query, prompt.key(i))); };
      const double shift = exponentiate(
          team, prompt.size(), prompt.sink_logit(head), logit, [](int32_t) { return 1.0; },
          [](int32_t) { return true; }, p);
      const double total =
          team.sum(prompt.size(), [&](int32_t i) { return p[size_t(i)]; }) + sink_term(prompt.sink_logit(head), shift);
      team.each(cache.size(), [&](int32_t j) { votes[size_t(j)] += p[size_t(cache.token(j))] / total; });
    }
  }
};

}  // namespace kvreplay
