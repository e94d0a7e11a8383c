#pragma once
#include <string>
#include <vector>

#include "apps/console.hpp"
#include "catalog/cell.hpp"
#include "results/note.hpp"
#include "sizing/shares.hpp"
#include "trace/tensors.hpp"

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

// Whether a prompt's trace holds a gradient, and why the planned replay cannot use it: "" if it can, or has none.
struct GradientUse {
  std::string prompt;
  bool recorded = false;
  std::string why_not;
};
// One entry for each prompt of the plan. Prompts of traces without a gradient are not opened.
std::vector<GradientUse> uses_of_gradients(const std::vector<Cell>& plan, const std::vector<TraceInfo>& traces,
                                           const OpenTensors& open);
bool all_use_gradients(const std::vector<GradientUse>& uses);
// One line for each prompt whose gradient the replay cannot use.
std::vector<std::string> remarks_on(const std::vector<GradientUse>& uses);

// Prints the first notes as warnings, and how many more there are.
void print_notes(const Notes& notes, Console& console);

}  // namespace kvreplay::app
