#pragma once
#include "core/policy.hpp"

namespace kvreplay {

// Exact causal attention: every token stays. The reference that all errors are measured against,
// replayed as a method so that its cost and its bytes stand in the same table.
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
  static void declare(auto&) {}
  void resolve(const Scene&) {}
};

}  // namespace kvreplay
