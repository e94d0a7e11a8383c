#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvreplay {

// Random numbers that a test injects instead of the counter-based ones.
struct InjectedUniforms {
  std::vector<double> values;  // row-major, each in [0, 1)
  int64_t positions = 0;       // last extent
};

// The dataset u, U, UD, UM or uniforms under /<prompt>/<LLL>/<kv head>/, or at the root of the file. Throws
// ConfigError naming file and dataset when it is missing, has fewer than `needed` values, or holds a value
// outside [0, 1).
InjectedUniforms read_uniforms(const std::filesystem::path& file, const std::string& prompt, int32_t layer,
                               int32_t kv_head, int64_t needed);

}  // namespace kvreplay
