#pragma once
#include <string>
#include <vector>

#include "apps/console.hpp"
#include "catalog/cell.hpp"
#include "results/note.hpp"
#include "trace/tensors.hpp"

namespace kvreplay::app {

// Prints the first notes as warnings, and how many more there are.
void print_notes(const Notes& notes, Console& console);
// Whether a prompt's trace holds a gradient, and why the planned replay cannot use it: "" if it can, or has none.
struct GradientUse {
  std::string prompt;
  bool recorded = false;
  std::string why_not;
};
// One entry for each prompt of the plan. Prompts of traces without a gradient are not opened.
std::vector<GradientUse> uses_of_gradients(const std::vector<Cell>& plan, const std::vector<TraceInfo>& traces,
                                           const OpenTensors& open);
void warn_unused_gradients(const std::vector<GradientUse>& uses, Console& console);
bool all_use_gradients(const std::vector<GradientUse>& uses);

}  // namespace kvreplay::app
