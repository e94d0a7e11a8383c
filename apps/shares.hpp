#pragma once
#include <string>
#include <vector>

#include "sizing/shares.hpp"

namespace kvreplay::app {

// Names the bytes that shares bound, and the setting that says so.
std::string bytes_text(BudgetList::Of of);
// Remarks on solved shares of the cache: a line for each method and share that is not reached, or that holds
// everything.
std::vector<std::string> remarks_on(const RunConfig& config, const SolvedShares& solved);

// A share that an instance does not reach in some or all heads.
struct NotReached {
  std::string label;
  double share = 0, floor = 0;
  bool anywhere = false;  // some heads do reach it
};
std::vector<NotReached> not_reached(const RunConfig& config, const SolvedShares& solved);
// JSON: a list of {method, given, share, floor_low, floor_high, heads, of_heads}, and failure if no budget can be
// replayed.
std::string unreachable_json(const RunConfig& config, const SolvedShares& solved);

}  // namespace kvreplay::app
