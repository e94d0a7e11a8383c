#include "apps/notes.hpp"

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

void print_notes(const Notes& notes, Console& console) {
  constexpr size_t kTold = 5;
  for (size_t i = 0; i < std::min(notes.size(), kTold); ++i) console.warning(notes[i].text);
  if (notes.size() > kTold)
    console.warning(fmt::format("and {} more notes, see `notes` in results.meta.json", notes.size() - kTold));
}

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

void warn_unused_gradients(const std::vector<GradientUse>& uses, Console& console) {
  for (const GradientUse& use : uses)
    if (!use.why_not.empty())
      console.warning(fmt::format("prompt {}: kl_head_mean stays empty: {}", use.prompt, use.why_not));
}

bool all_use_gradients(const std::vector<GradientUse>& uses) {
  return !uses.empty() && std::all_of(uses.begin(), uses.end(),
                                      [](const GradientUse& use) { return use.recorded && use.why_not.empty(); });
}

}  // namespace kvreplay::app
