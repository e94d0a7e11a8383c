#pragma once
#include "methods/snapkv.hpp"

namespace kvreplay {

// LAQ, Wang et al. 2025 (Lookahead Q-Cache): SnapKV whose observation window is the queries that are generated next, so
// that a cut sees what decoding looks at. IT SEES THE FUTURE: the paper generates these queries with a cache that
// SnapKV has cut, a trace has only those of the model itself.
//  1. s[j] = sum over rows P..P+lookahead-1 and the group of x_row(j), for all prompt tokens j.
//  2. Pool s as SnapKV does.
//  3. Keep the top B; later tokens are kept. What it has looked at is not measured: errors begin at row P+lookahead.
struct Laq : SnapKv {
  static constexpr MethodInfo info{
      .name = "laq",
      .title = "votes of the next rows (sees 8 future rows)",
      .source = "Lookahead Q-Cache, Wang et al. 2025 (arXiv 2505.20334)",
      .tier = 3,
      .memory = "B prompt tokens and every later one",
      .deviation =
          "looks at the trace's own next rows, where the paper generates them from a cache that snapkv has cut "
          "(no trace records such a pass); therefore an oracle, measured from the first row that it has not seen.",
      .streams = false,
      .default_phase = Phase::oneshot,
  };
  static constexpr Hooks hooks{"read_prompt evict report layout needs protection voters set_options state"};
  int32_t lookahead = 8;

  static void declare(auto& d) {
    d.integer("lookahead", &Laq::lookahead, {1, kManyTokens}, "rows after the prompt that vote, and are not measured");
    declare_pooling<Laq>(d);
    protect<Laq>(d);
  }
  void resolve(const MethodContext& context) {
    window = 0;
    SnapKv::resolve(context);
    const int32_t later = context.tokens - context.prompt_tokens;
    if (lookahead >= later)
      throw ParameterError("lookahead",
                           "lookahead " + std::to_string(lookahead) + " leaves none of the " + std::to_string(later) +
                               " rows after the prompt to measure; take a trace "
                               "of at least " +
                               std::to_string(lookahead + 1) + ", a smaller replay.prefill or a smaller lookahead");
  }
  PromptNeeds needs(const MethodContext& context) const {
    return {.column_sums_from = context.prompt_tokens, .rows_ahead = lookahead};
  }
  double voters(const MethodContext& context) const {
    return double(lookahead) * (context.aggregate == Aggregate::sum ? context.shape.heads : 1);
  }
  void report(auto& extras, const auto&) const { extras["sees_future"] = 1; }
};

}  // namespace kvreplay
