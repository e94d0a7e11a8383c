#pragma once
#include <algorithm>

#include "core/policy.hpp"

namespace kvreplay {

// How evictors for long decodes cut: once at the end of the prompt, then once every `buffer` tokens. Between two cuts
// every new token stays, so at most B + buffer tokens are attended to (at most B with buffer_in_budget). A method
// derives from it, calls declare_buffer() in declare(), calls comes() for every token, and cuts to `target` when
// is_due() returns true.
struct Buffered {
  int32_t buffer = 128;
  bool buffer_in_budget = false;
  int32_t target = 0;  // tokens left by a cut
  int32_t since = 0;   // tokens since the last point at which a cut was due

  template <class M>
  static void declare_buffer(auto& d) {
    d.integer("buffer", static_cast<int32_t M::*>(&M::buffer), {1, kManyTokens}, "new tokens between two cuts");
    d.boolean("buffer_in_budget", static_cast<bool M::*>(&M::buffer_in_budget),
              "whether the tokens that wait for a cut count inside the budget");
  }
  // least: tokens that every cut keeps, whatever their scores. Throws ParameterError if they leave no choice.
  void resolve(const MethodContext& context, int32_t least) {
    target = context.budget.tokens - (buffer_in_budget ? buffer : 0);
    if (target > least) return;
    if (buffer_in_budget)
      throw ParameterError("buffer", "buffer " + std::to_string(buffer) + " and the " + std::to_string(least) +
                                         " protected tokens leave nothing of the budget of " +
                                         std::to_string(context.budget.tokens) +
                                         " to choose; make them smaller or the budget larger");
    throw ParameterError("", "the " + std::to_string(least) + " protected tokens leave nothing of the budget of " +
                                 std::to_string(context.budget.tokens) +
                                 " to choose; protect fewer or make the budget larger");
  }
  int64_t most_kept() const { return int64_t(target) + buffer; }  // after a step
  void traits(Traits& t) const { t.max_rows = most_kept(); }
  // The most rows that a cut may look at.
  int64_t most_rows(const MethodContext& context) const {
    return std::min<int64_t>(context.tokens, std::max<int64_t>(context.prompt_tokens, most_kept()) + 1);
  }
  void on_new_token() { ++since; }
  // True at the end of the prompt and after the step that fills the buffer.
  bool is_due() {
    if (since != 0 && since < buffer) return false;
    since = 0;
    return true;
  }
};

}  // namespace kvreplay
