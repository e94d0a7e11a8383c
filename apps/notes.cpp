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

void tell_notes(const Notes& notes, Console& console) {
  constexpr size_t kTold = 5;
  for (size_t i = 0; i < std::min(notes.size(), kTold); ++i) console.warning(notes[i].text);
  if (notes.size() > kTold)
    console.warning(fmt::format("and {} more notes, see `notes` in results.meta.json", notes.size() - kTold));
}

void tell_unused_gradients(const std::vector<Cell>& plan, const std::vector<TraceInfo>& traces, const OpenTensors& open,
                           Console& console) {
  std::map<std::pair<size_t, std::string>, const Cell*> first_of;  // of each prompt; its layers were recorded alike
  for (const Cell& cell : plan) first_of.try_emplace({cell.place.trace, cell.place.prompt}, &cell);
  for (const auto& [prompt, cell] : first_of) {
    const Place& place = cell->place;
    if (!holds_gradient(traces[place.trace])) continue;
    const auto trace = open(place.trace, {{{place.prompt}}, {{place.layer}}});
    const std::vector<int32_t> rows = trace->gradient_rows(place.prompt, place.layer);
    const std::string why = rows.empty() ? "" : why_not_projected(*trace, place, rows, cell->extent);
    if (!why.empty()) console.warning(fmt::format("prompt {}: kl_head_mean stays empty: {}", place.prompt, why));
  }
}

}  // namespace kvreplay::app
