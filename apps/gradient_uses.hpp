#pragma once
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "trace/tensors.hpp"

namespace kvreplay::app {

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

}  // namespace kvreplay::app
