#include "trace/suspicious_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trace/layer_path.hpp"

namespace kvreplay {
namespace {

// Models deviate from 1/sqrt(head_dim) by a factor of up to 1.9 (long contexts). A factor that was forgotten or applied
// twice deviates by sqrt(head_dim), which is 4 or more.
constexpr double kMaxScalingRatio = 2.5;

// A prompt with recorded token ids has a known number of tokens, so its axes cannot be swapped.
bool has_swapped_axes(const PromptInfo& prompt, const LayerInfo& layer) {
  return layer.kv_heads > layer.tokens && !prompt.has_tokens;
}

// A recorded `out` tests the scaling directly.
bool has_far_scaling(const LayerInfo& layer) {
  if (layer.has_out) return false;
  const double usual = 1 / std::sqrt(layer.head_dim);
  const bool far = layer.scaling > kMaxScalingRatio * usual || layer.scaling * kMaxScalingRatio < usual;
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

std::string layer_count_text(int64_t layers) { return layers > 1 ? fmt::format(" (in {} layers)", layers) : ""; }

// One line per prompt that has such a layer.
template <class IsSuspicious>
std::vector<std::string> lines_of(const TraceInfo& info, const char* dataset, const IsSuspicious& is_suspicious,
                                  std::string (*text)(const LayerInfo&)) {
  std::vector<std::string> lines;
  for (const PromptInfo& prompt : info.prompts) {
    const auto here = [&](const LayerInfo& layer) { return is_suspicious(prompt, layer); };
    const auto found = std::ranges::find_if(prompt.layers, here);
    if (found == prompt.layers.end()) continue;
    lines.push_back(fmt::format("{}: /{}{}: {}{}", info.path.string(), layer_path(prompt.id, found->layer), dataset,
                                text(*found), layer_count_text(std::ranges::count_if(prompt.layers, here))));
  }
  return lines;
}

}  // namespace

std::vector<std::string> swapped_axes(const TraceInfo& info) {
  return lines_of(info, "/k", has_swapped_axes, swapped_text);
}

std::vector<std::string> far_scalings(const TraceInfo& info) {
  if (info.dumper.starts_with("kvreplay record") || info.dumper.starts_with("kvdump"))
    return {};  // its new and old name
  return lines_of(
      info, "", [](const PromptInfo&, const LayerInfo& layer) { return has_far_scaling(layer); }, scaling_text);
}

}  // namespace kvreplay
