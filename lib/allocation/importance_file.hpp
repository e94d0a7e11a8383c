#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/place.hpp"

namespace kvreplay {

// Importance of kv heads, each the sum over the `group` query heads that share it, in a JSON object of scores as HeadKV
// and Retrieval_Head publish them: {"LAYER-HEAD": score} for every query head, a list of scores standing for its mean.
// Throws ConfigError that names file and head.
std::vector<double> importance_in_file(const std::string& path, const std::vector<Place>& heads, int32_t group);

}  // namespace kvreplay
