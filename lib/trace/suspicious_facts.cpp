#include "trace/suspicious_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trace/layer_path.hpp"

namespace kvreplay {
namespace {

// Models leave 1/sqrt(head_dim) by up to 1.9 (long contexts); a factor that was forgotten or applied twice is
// sqrt(head_dim), 4 and more.
constexpr double kFarthestScaling = 2.5;

// Tokens that are named one by one (ids) were counted by somebody.
bool has_swapped_axes(const PromptInfo& prompt, const LayerInfo& layer) {
  return layer.kv_heads > layer.tokens && !prompt.has_tokens;
}

// Where `out` is recorded, it tells.
bool has_far_scaling(const LayerInfo& layer) {
  if (layer.has_out) return false;
  const double usual = 1 / std::sqrt(layer.head_dim);
  const bool far = layer.scaling > kFarthestScaling * usual || layer.scaling * kFarthestScaling < usual;
  return far && !(layer.q_prescaled && layer.scaling == 1);
}

std::string swapped_text(const LayerInfo& l) {
  return fmt::format("has {} heads of {} tokens. Axes are [heads, tokens, dim]: transpose what is [tokens, heads, dim]",
                     l.kv_heads, l.tokens);
}

std::string scaling_text(const LayerInfo& l) {
  return fmt::format(
      "attribute scaling is {:.6g}, far from 1/sqrt(head_dim) = {:.6g}. Compare it with the model's; where "
      "q is scaled already, write scaling 1 and q_prescaled 1",
      l.scaling, 1 / std::sqrt(l.head_dim));
}

std::string in_more(int64_t layers) { return layers > 1 ? fmt::format(" (so in {} layers)", layers) : ""; }

// One line for each prompt that has such a layer.
template <class IsSuspicious>
std::vector<std::string> lines_of(const TraceInfo& info, const char* dataset, const IsSuspicious& is_suspicious,
                                  std::string (*text)(const LayerInfo&)) {
  std::vector<std::string> lines;
  for (const PromptInfo& prompt : info.prompts) {
    const auto here = [&](const LayerInfo& layer) { return is_suspicious(prompt, layer); };
    const auto found = std::ranges::find_if(prompt.layers, here);
    if (found == prompt.layers.end()) continue;
    lines.push_back(fmt::format("{}: /{}{}: {}{}", info.path.string(), layer_path(prompt.id, found->layer), dataset,
                                text(*found), in_more(std::ranges::count_if(prompt.layers, here))));
  }
  return lines;
}

}  // namespace

std::vector<std::string> swapped_axes(const TraceInfo& info) {
  return lines_of(info, "/k", has_swapped_axes, swapped_text);
}

std::vector<std::string> far_scalings(const TraceInfo& info) {
  if (info.dumper.starts_with("kvdump")) return {};
  return lines_of(
      info, "", [](const PromptInfo&, const LayerInfo& layer) { return has_far_scaling(layer); }, scaling_text);
}

}  // namespace kvreplay
