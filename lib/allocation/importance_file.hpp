#pragma once
#include <cstdint>
#include <string>

namespace kvreplay {

// Importance of one kv head, the sum over the `group` query heads that share it, in a JSON object of scores as HeadKV
// and Retrieval_Head publish them: {"LAYER-HEAD": score} for every query head, a list of scores standing for its mean.
// Throws ConfigError that names file and head.
double importance_in_file(const std::string& path, int32_t layer, int32_t kv_head, int32_t group);

}  // namespace kvreplay
