#include "sweep/staging.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <numeric>
#include <utility>

#include "base/errors.hpp"
#include "results/output_files.hpp"
#include "trace/trace_files.hpp"

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStagePrefix = "kvreplay-stage.";
constexpr const char* kLock = "lock";

// The lock's descriptor, or -1 if another process holds the lock.
int take_lock(const fs::path& folder) {
  const int file = ::open((folder / kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file >= 0 && ::flock(file, LOCK_EX | LOCK_NB) == 0) return file;
  if (file >= 0) ::close(file);
  return -1;
}

void remove_abandoned(const fs::path& dir) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    if (!entry.path().filename().string().starts_with(kStagePrefix)) continue;
    const int lock = take_lock(entry.path());
    if (lock < 0) continue;
    fs::remove_all(entry.path(), ignored);
    ::close(lock);
  }
}

uintmax_t bytes_of_files(const std::vector<fs::path>& files) {
  return std::accumulate(files.begin(), files.end(), uintmax_t{0},
                         [](uintmax_t sum, const fs::path& file) { return sum + fs::file_size(file); });
}

}  // namespace

Staging::Staging(const fs::path& dir, std::function<void(const std::string&)> tell)
    : folder_(fs::absolute(dir) / (std::string(kStagePrefix) + process_name())), tell_(std::move(tell)) {
  std::error_code error;
  fs::create_directories(dir, error);
  remove_abandoned(dir);
  // Another process may remove this folder as abandoned before its lock is held.
  constexpr int kTries = 10;
  for (int i = 0; i < kTries && !error && lock_ < 0; ++i) {
    fs::create_directories(folder_, error);
    lock_ = take_lock(folder_);
    if (lock_ >= 0 && !fs::exists(folder_ / kLock)) ::close(std::exchange(lock_, -1));
  }
  if (lock_ < 0)
    throw OutputError(fmt::format("{}: cannot be written{}. Choose another directory with --stage", dir.string(),
                                  error ? ": " + error.message() : ""));
}

Staging::~Staging() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
  ::close(lock_);
}

fs::path Staging::copy(const fs::path& trace, const TraceScope& scope) {
  const std::vector<fs::path> files = files_of_trace(trace, scope);
  const fs::path home = fs::weakly_canonical(trace).parent_path();
  const fs::path to = folder_ / std::to_string(copies_++);
  try {
    const uintmax_t bytes = bytes_of_files(files), room = fs::space(folder_).available;
    if (bytes > room) {
      tell_(fmt::format("{}: {} MB do not fit into the {} MB that are free in {}: read where it is", trace.string(),
                        bytes >> 20, room >> 20, folder_.parent_path().string()));
      return trace;
    }
    std::vector<fs::path> copies;
    for (const fs::path& file : files) {
      copies.push_back(to / fs::weakly_canonical(file).lexically_relative(home));
      fs::create_directories(copies.back().parent_path());
      fs::copy_file(file, copies.back());
    }
    tell_(fmt::format("{}: {} files, {} MB, copied to {}", trace.string(), files.size(), bytes >> 20, to.string()));
    return copies.front();
  } catch (const fs::filesystem_error& problem) {
    std::error_code ignored;
    fs::remove_all(to, ignored);
    tell_(fmt::format("{}: cannot be copied to {} ({}): read where it is", trace.string(),
                      folder_.parent_path().string(), problem.code().message()));
    return trace;
  }
}

}  // namespace kvreplay
