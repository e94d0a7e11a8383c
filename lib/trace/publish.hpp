#pragma once
#include <filesystem>

namespace kvreplay {

// Gives a finished file its final name such that a crash leaves the old file or the whole new one:
// fsync, rename, fsync of the folder. Throws OutputError.
void publish(const std::filesystem::path& part, const std::filesystem::path& path);

}  // namespace kvreplay
