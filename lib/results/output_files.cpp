#include "results/output_files.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/errors.hpp"
#include "trace/publish.hpp"

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& file, const std::string& what, int error) {
  const char* remedy =
      error == ENOSPC || error == EDQUOT ? "free some space and run again" : "choose another directory with -o";
  throw OutputError(fmt::format("{}: {}: {}. Published results are kept; {}", file.string(), what,
                                std::generic_category().message(error), remedy));
}

// Returns 0 or the error number.
int write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(size_t(written));
  }
  return 0;
}

std::string host_name() {
  std::array<char, 256> text{};
  if (::gethostname(text.data(), text.size() - 1) != 0 || text[0] == '\0') return "host";
  std::string name = text.data();
  for (char& c : name)
    if (c == '/') c = '_';
  return name;
}

// Syncs, so that a new name in it survives a crash. Some file systems cannot; the file itself is synced anyway.
void sync_directory(const fs::path& dir) {
  const int file = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  ::fsync(file);
  ::close(file);
}

int create_new(const fs::path& path) {
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
}

}  // namespace

std::string process_name() { return fmt::format("{}.{}", host_name(), ::getpid()); }

fs::path temporary_name(const fs::path& file) {
  static std::atomic<int> counter{0};
  return file.parent_path() / fmt::format(".{}~{}.{}", file.filename().string(), process_name(), counter++);
}

std::string final_name(const std::string& temporary) {
  const size_t end = temporary.find('~');
  return temporary.front() == '.' && end != std::string::npos ? temporary.substr(1, end - 1) : "";
}

void publish_text(const fs::path& file, const std::string& text) {
  TextFile out(file);
  out.append(text);
  out.publish();
}

TextFile::TextFile(const fs::path& file) : final_(file) {
  do {  // a killed process may have had this process's name and number
    temporary_ = temporary_name(file);
    file_ = create_new(temporary_);
  } while (file_ < 0 && errno == EEXIST);
  if (file_ < 0) fail(final_, "cannot be written", errno);
}

TextFile::~TextFile() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void TextFile::append(const std::string& text) {
  constexpr size_t kPiece = size_t{1} << 20;
  waiting_ += text;
  if (waiting_.size() >= kPiece) flush();
}

void TextFile::flush() {
  if (const int error = write_all(file_, waiting_); error != 0) fail(final_, "cannot be written", error);
  waiting_.clear();
}

void TextFile::publish() {
  flush();
  if (::close(std::exchange(file_, -1)) != 0) fail(final_, "cannot be written", errno);
  kvreplay::publish(temporary_, final_);
  temporary_.clear();
}

// Containers that share a host name can have two processes with one name: the second takes a number.
AppendFile::AppendFile(const fs::path& dir, const std::string& name, const std::string& extension) {
  for (int i = 0; file_ < 0; ++i) {
    path_ = dir / fmt::format("{}.{}{}{}", name, process_name(), i == 0 ? "" : fmt::format("-{}", i), extension);
    file_ = create_new(path_);
    if (file_ < 0 && errno != EEXIST) fail(path_, "cannot be created", errno);
  }
  sync_directory(dir);
}

AppendFile::~AppendFile() {
  ::close(file_);
  if (bytes_ == 0) ::unlink(path_.c_str());
}

uint64_t AppendFile::append(std::string_view bytes) {
  const int error = write_all(file_, bytes);
  torn_ = error != 0;
  synced_ = false;
  struct stat now {};
  if (::fstat(file_, &now) == 0) bytes_ = uint64_t(now.st_size);
  if (error != 0) fail(path_, "cannot be written", error);
  if (now.st_nlink == 0) fail(path_, "was removed while the run wrote to it", ENOENT);
  return bytes_ - bytes.size();
}

// Ends a line that an earlier failed append may have left incomplete, so that only that line is lost.
uint64_t LineFile::append(const std::string& line) {
  const bool closes = torn();
  return AppendFile::append((closes ? "\n" : "") + line + "\n") + (closes ? 1 : 0);
}

void AppendFile::sync() {
  if (synced_) return;
  if (::fsync(file_) != 0) fail(path_, "cannot be written to disk", errno);
  synced_ = true;
}

}  // namespace kvreplay
