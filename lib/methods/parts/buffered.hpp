#pragma once
#include <algorithm>

#include "core/cut.hpp"
#include "core/policy.hpp"

namespace kvreplay {

inline ParameterError kept_chunks_error() {
  return {"keep_prompt",
          "keep_prompt keeps the prompt that prefill_chunk cuts: write keep_prompt: false, or leave out "
          "prefill_chunk"};
}

// How evictors for long decodes cut: once at the end of the prompt, then once every `buffer` tokens. Between two cuts
// every new token stays, so at most B + buffer tokens are attended to (at most B with buffer_in_budget). `cut_every` is
// another word for `buffer`. A method derives from it, calls declare_buffer() in declare(), and cuts by `plan`.
struct Buffered {
  int32_t buffer = 128;
  bool buffer_in_budget = false;
  CutPlan plan;

  template <class M>
  static void declare_buffer(auto& d) {
    d.integer("buffer", static_cast<int32_t M::*>(&M::buffer), {1, kManyTokens}, "new tokens between two cuts");
    d.boolean("buffer_in_budget", static_cast<bool M::*>(&M::buffer_in_budget),
              "whether the tokens that wait for a cut count inside the budget");
  }
  // least: tokens that every cut keeps, whatever their scores. Throws ParameterError if they leave no choice.
  void resolve(const MethodContext& context, Protect least) {
    MethodContext own = context;
    if (own.serving.cut_every > 0) buffer = own.serving.cut_every;
    own.serving.cut_every = buffer;
    own.serving.cut_in_budget = own.serving.cut_in_budget || buffer_in_budget;
    const std::string budget = " of the budget of " + std::to_string(context.budget.tokens) + " to choose; ";
    const std::string safe = std::to_string(least.sinks + least.recent) + " protected tokens leave nothing" + budget;
    const int32_t m = plan_cuts(own).target(own.prompt_tokens);
    if (m > least.sinks + least.recent) {
      plan = cut_plan(own, least);
      return;
    }
    if (own.serving.cut_in_budget)
      throw ParameterError(
          "buffer", "buffer " + std::to_string(buffer) + " and the " + safe + "make them smaller or the budget larger");
    throw ParameterError("", "the " + safe + "protect fewer or make the budget larger");
  }
  void traits(Traits& t) const { t.max_rows = plan.most_rows(std::numeric_limits<int32_t>::max() / 2); }
  // The most rows that a cut may look at.
  int64_t most_rows(const MethodContext& context) const {
    return std::min<int64_t>(context.tokens,
                             std::max<int64_t>(context.prompt_tokens, plan.most_rows(context.tokens)) + 1);
  }
};

}  // namespace kvreplay
