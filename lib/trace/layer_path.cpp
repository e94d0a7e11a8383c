#include "trace/layer_path.hpp"

#include <fmt/format.h>

namespace kvreplay {

std::string layer_path(const std::string& prompt, int32_t layer) {
  return fmt::format("prompts/{}/layers/{:03}", prompt, layer);
}

}  // namespace kvreplay
