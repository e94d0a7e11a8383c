#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/row_format.hpp"

namespace kvreplay {

// Random numbers that a test injects in place of the counter-based ones.
struct InjectedUniforms {
  std::vector<double> values;  // [rounds, positions, slots], each in [0, 1)
  int64_t positions = 0, slots = 1;
};
// A dataset to look for: possible names (the first one found is used) and minimum extents.
struct UniformsRequest {
  std::vector<std::string> names;
  int64_t rounds = 1, positions = 0, slots = 0;  // slots 0: no such axis
};

// Reads the dataset under /<prompt>/<LLL>/<kv head>/, or at the root of the file. Throws ConfigError, which names file
// and dataset, if it is missing, too small, or holds a value outside [0, 1).
InjectedUniforms read_uniforms(const std::filesystem::path& file, const std::string& prompt, int32_t layer,
                               int32_t kv_head, const UniformsRequest& request);

// Reads the datasets signs, rotation and sketch at the root, as far as counts asks for them; each must have the
// requested length. Throws ConfigError as above.
RowUniforms read_row_uniforms(const std::filesystem::path& file, const RowUniformCounts& counts);

}  // namespace kvreplay
