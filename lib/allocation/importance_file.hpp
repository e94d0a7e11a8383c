#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/place.hpp"

namespace kvreplay {

// Reads the importance of kv heads from a JSON object as HeadKV and Retrieval_Head publish them: {"LAYER-HEAD": score}
// for every query head. A list of scores stands for its mean. A kv head's importance is the sum over the `group` query
// heads that share it. Throws ConfigError that names file and head.
std::vector<double> importance_in_file(const std::string& path, const std::vector<Place>& heads, int32_t group);

}  // namespace kvreplay
