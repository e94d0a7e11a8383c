#include "config/least_budget.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace kvreplay {
namespace {

constexpr int32_t kMostTried = 4096;  // a budget that needs more is no slip

// Why an instance cannot be resolved at a budget; "" if it can.
std::string obstacle(const MethodInstance& instance, MethodContext context, int32_t tokens) {
  context.budget = {tokens, double(tokens)};
  try {
    (void)BoundMethod(instance.values, context);
    return "";
  } catch (const ParameterError& e) {
    return e.what();
  }
}

struct Least {
  int32_t tokens = 0;
  std::string why;  // one token less is refused
};

// The smallest larger budget that works; nullopt unless the size of the budget is what is wrong.
std::optional<Least> least_above(const MethodInstance& instance, const MethodContext& context, std::string why) {
  const int32_t asked = context.budget.tokens, most = std::min(context.tokens, asked + kMostTried);
  for (int32_t tokens = asked + 1; tokens <= most; ++tokens) {
    std::string next = obstacle(instance, context, tokens);
    if (!next.empty()) why = std::move(next);
    else if (obstacle(instance, context, tokens + 1).empty()) return Least{tokens, why};
    else return std::nullopt;
  }
  return std::nullopt;
}

// Replaces the number in "budget of 8". Returns whether the text names this budget.
bool leave_out_budget(std::string& text, int32_t tokens) {
  const std::string phrase = "budget of ", number = std::to_string(tokens);
  const size_t at = text.find(phrase + number), end = at + phrase.size() + number.size();
  if (at == std::string::npos || (end < text.size() && text[end] >= '0' && text[end] <= '9')) return false;
  text.replace(at + phrase.size(), number.size(), "{value}");
  return true;
}

}  // namespace

Refusal refusal_at_budget(const MethodInstance& instance, const MethodContext& context, const std::string& why) {
  const int32_t asked = context.budget.tokens;
  Refusal refusal{.rule = why};
  if (context.budget.none()) return refusal;
  const auto least = least_above(instance, context, why);
  if (least) refusal.rule = least->why;
  const bool named = leave_out_budget(refusal.rule, least ? least->tokens - 1 : asked);
  if (named || least) refusal.values = {std::to_string(asked)};
  if (named && least) refusal.remedy = fmt::format("at least {}", least->tokens);
  if (!named && least)
    refusal.rule =
        fmt::format("a budget of {{value}} is too small, and at least {} works: {}", least->tokens, least->why);
  return refusal;
}

}  // namespace kvreplay
