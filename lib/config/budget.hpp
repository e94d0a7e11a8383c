#pragma once
#include "base/refusal.hpp"
#include "config/run_config.hpp"

namespace kvreplay {

// A budget that an instance refuses, as a mistake that is one for all budgets and methods with one reason. If only the
// budget is too small, it names the smallest that works. why: the refusal's text at that budget.
Refusal refusal_at_budget(const MethodInstance& instance, const MethodContext& context, const std::string& why);

// Whether the method that decides after the prompt can be resolved, if there is one. Throws ParameterError.
void check_later(const MethodInstance& instance, const MethodContext& context);

}  // namespace kvreplay
