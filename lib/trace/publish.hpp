#pragma once
#include <filesystem>

namespace kvreplay {

// Renames a finished file to its final name. After a crash either the old file or the whole new one exists: fsync,
// rename, fsync of the folder. Throws OutputError.
void publish(const std::filesystem::path& part, const std::filesystem::path& path);

}  // namespace kvreplay
