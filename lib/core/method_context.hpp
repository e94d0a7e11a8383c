#pragma once
#include <cstdint>
#include <optional>

#include "core/common_options.hpp"
#include "core/cut_plan.hpp"
#include "core/layer_window.hpp"
#include "core/token.hpp"

namespace kvreplay {

// Replayed tokens, including those of the prompt. The prompt's tokens are passed in one call, unless the prompt
// streams.
struct Extent {
  int32_t tokens = 0, prompt_tokens = 0;
  int32_t question_tokens = 0;  // last tokens of the prompt, if the trace marks them as its question
  // The text has turns: inputs behind the prompt arrive at once, outputs token by token.
  bool turns = false;
  int32_t longest_input = 0;  // tokens of the longest input behind the prompt
  int32_t branch = -1;        // the branch that follows the prompt; -1: the trace's own rows do
};

// Rows that a cache of one kv head may hold.
struct Budget {
  int32_t tokens = 0;           // 0: the method takes no budget
  double requested_tokens = 0;  // in tokens, before rounding down
  // This head's share, where an allocator shares the budget over heads.
  std::optional<int32_t> share = std::nullopt;
  Growth growth = {};  // `tokens` is then the budget at the end of the text
  constexpr bool none() const { return tokens == 0; }
};

// The situation that a method is resolved for.
struct MethodContext : Extent {
  Budget budget;
  HeadShape shape{};     // shape of the heads that decide together
  int32_t kv_heads = 1;  // all that the layer has
  int32_t layer = 0, n_layers = 0;
  Phase phase = Phase::stream;
  double scale = 1;  // scale of the logits
  Aggregate aggregate = Aggregate::sum;
  LayerWindow window = {};             // known during the replay only
  int32_t query_heads = 1;             // likewise: of the kv head, whether or not they share a cache
  const int32_t* turn_step = nullptr;  // likewise, with turns: Turns::step
  // Computed from the whole trace, future included; 0 unless the method's oracle_needs() asks for them, and while a run
  // is planned.
  double median_key_distance = 0, largest_query_norm = 0;
  bool compares_heads = false;  // scores of several kv heads will be ranked together
  Serving serving = {};
  int32_t handed_tokens = 0;  // most tokens that another method leaves at the end of the prompt (option `then`)
};

// When a method that selects cuts in this context, and to how many tokens, if it has no rule of its own.
inline CutPlan plan_cuts(const MethodContext& context) {
  CutPlan plan{context.serving, context.budget.growth, context.budget.tokens, context.prompt_tokens};
  if (plan.options.cut_every > 0) plan.every = plan.options.cut_every;
  if (plan.options.recut) plan.every = CutPlan::kNever;
  plan.handed = context.handed_tokens;
  plan.turn_step = context.turn_step, plan.longest_input = context.longest_input;
  return plan;
}

// Numbers of the trace that no causal method can know. A method that asks for them must document it.
struct OracleNeeds {
  bool median_key_distance = false;  // measures.md, section 4: median over at most 2000 pairs
  bool largest_query_norm = false;
};

}  // namespace kvreplay
