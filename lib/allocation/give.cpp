#include "allocation/give.hpp"

#include <algorithm>

#include "allocation/head_scoring.hpp"
#include "base/errors.hpp"

namespace kvreplay {

std::vector<Place> heads_of(const std::vector<Place>& layers) {
  std::vector<Place> heads;
  for (const Place& layer : layers)
    for (int32_t h = 0; h < layer.kv_head; ++h) heads.push_back({layer.trace, "", layer.layer, h});
  return heads;
}
size_t place_of(const Cell& cell, const std::vector<Place>& heads) {
  const Place own{cell.place.trace, "", cell.place.layer, cell.place.kv_head};
  return size_t(std::find(heads.begin(), heads.end(), own) - heads.begin());
}

void give(Cell& cell, int32_t tokens) {
  try {
    set_share(cell, tokens);
  } catch (const ParameterError& e) {
    throw ConfigError(std::string(cell.method().info.name) + ", layer " + std::to_string(cell.place.layer) +
                      ", kv head " + std::to_string(cell.place.kv_head) + ": the allocator gives it " +
                      std::to_string(tokens) + " tokens, and " + e.what());
  }
  const Calibration* from = calibration_heads(cell.variant->values, cell.options());
  if (from == nullptr) return;
  if (from->is_offline()) cell.allocator_says["offline"] = 1;
  else if (by_curves(cell)) cell.allocator_says["sees_future"] = 1;
}

void stream_ends(Cell& cell, Protect ends) {
  cell.budget.share = ends.sinks + ends.recent;
  const auto named = std::make_shared<const Cell>(cell);
  Variant own = *cell.variant;
  own.values = values_of(cell, "streaming_llm");
  own.values.set(*own.values.method().parameter("sinks"), std::to_string(ends.sinks));
  CommonOptions options;
  options.positions = cell.options().positions, options.row_format = cell.options().row_format;
  own.options = options;
  cell.variant = std::make_shared<const Variant>(own);
  own.params = shown_params(BoundMethod(own.values, cell.context()), own);
  cell.variant = std::make_shared<const Variant>(std::move(own));
  cell.named = named;
}

}  // namespace kvreplay
