#include "apps/gradient_uses.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "exact/sensitivity.hpp"

namespace kvreplay::app {
namespace {

bool holds_gradient(const TraceInfo& trace) {
  return std::any_of(trace.prompts.begin(), trace.prompts.end(), [](const PromptInfo& prompt) {
    return std::any_of(prompt.layers.begin(), prompt.layers.end(),
                       [](const LayerInfo& layer) { return layer.gradient_samples > 0; });
  });
}

}  // namespace

std::vector<GradientUse> uses_of_gradients(const std::vector<Cell>& plan, const std::vector<TraceInfo>& traces,
                                           const OpenTensors& open) {
  std::map<std::pair<size_t, std::string>, const Cell*> first_of;  // first cell of each prompt; its layers were
                                                                   // recorded alike
  for (const Cell& cell : plan) first_of.try_emplace({cell.place.trace, cell.place.prompt}, &cell);
  std::vector<GradientUse> uses;
  for (const auto& [prompt, cell] : first_of) {
    const Place& place = cell->place;
    std::vector<int32_t> rows;
    std::unique_ptr<Tensors> trace;
    if (holds_gradient(traces[place.trace])) {
      trace = open(place.trace, {{{place.prompt}}, {{place.layer}}});
      rows = trace->gradient_rows(place.prompt, place.layer);
    }
    uses.push_back(
        {place.prompt, !rows.empty(), rows.empty() ? "" : projection_obstacle(*trace, place, rows, cell->extent)});
  }
  return uses;
}

bool all_use_gradients(const std::vector<GradientUse>& uses) {
  return !uses.empty() && std::all_of(uses.begin(), uses.end(),
                                      [](const GradientUse& use) { return use.recorded && use.why_not.empty(); });
}

std::vector<std::string> remarks_on(const std::vector<GradientUse>& uses) {
  std::vector<std::string> lines;
  for (const GradientUse& use : uses)
    if (!use.why_not.empty())
      lines.push_back(fmt::format("prompt {}: kl_head_mean stays empty: {}", use.prompt, use.why_not));
  return lines;
}

}  // namespace kvreplay::app
