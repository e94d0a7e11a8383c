#pragma once
#include "core/policy.hpp"
#include "methods/parts/log_n.hpp"

namespace kvreplay {

// Exact causal attention: every token stays. All errors are measured against it. It is also replayed as a method, so
// that its cost and its bytes appear in the same table. With `log_n` all logits of a step are multiplied by that
// factor, which separates the effect of BUZZ's log n from BUZZ.
struct Exact {
  static constexpr MethodInfo info{
      .name = "exact",
      .title = "exact causal attention",
      .source = "definition; Vaswani et al. 2017, section 3.2",
      .tier = 1,
      .memory = "every token",
      .deviation = "",
      .oneshots = false,
      .any_positions = false,
      .takes_budget = false,
      .implied_layout = true,
  };
  static constexpr Hooks hooks{"logit_factor traits"};
  LogN log_n = LogN::off;

  static void declare(auto& d) { d.choice("log_n", &Exact::log_n, {"off", "live", "context"}, kLogNHelp); }
  void resolve(const MethodContext&) {}
  void traits(Traits& t) const { t.changes_logits = log_n != LogN::off; }
  double logit_factor(int32_t rows, int32_t token) const { return log_n_factor(log_n, rows, token); }
};

}  // namespace kvreplay
