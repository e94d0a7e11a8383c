#pragma once
#include <cstdint>
#include <string>

namespace kvreplay {

std::string layer_path(const std::string& prompt, int32_t layer);  // "prompts/<id>/layers/<LLL>"

}  // namespace kvreplay
