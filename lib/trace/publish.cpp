#include "trace/publish.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/errors.hpp"

namespace kvreplay {
namespace fs = std::filesystem;
namespace {

bool sync(const fs::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) return false;
  const bool good = ::fsync(fd) == 0 || errno == EINVAL;  // EINVAL: the file system cannot fsync folders
  return ::close(fd) == 0 && good;
}

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  throw OutputError(path.string() + ": " + what + " (" + std::strerror(errno) + "). Is the disk full?");
}

}  // namespace

void publish(const fs::path& part, const fs::path& path) {
  if (!sync(part, O_RDONLY)) fail(part, "cannot be written to the disk");
  if (::rename(part.c_str(), path.c_str()) != 0) fail(path, "cannot be renamed from its .part");
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!sync(folder, O_RDONLY | O_DIRECTORY)) fail(folder, "cannot be written to the disk");
}

}  // namespace kvreplay
