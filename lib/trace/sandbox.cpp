#include "trace/sandbox.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <new>

#include "trace/h5_walk.hpp"

namespace kvreplay {
namespace {

constexpr rlim_t kLongestSeconds = 8;   // processor time; ten thousand datasets take about three seconds
constexpr rlim_t kMostMegabytes = 512;  // on top of the memory already in use; ten thousand datasets take about 30
constexpr int kNoMemory = 3;
constexpr size_t kLongestMessage = 16'000;  // a pipe holds 64 KiB, so the child never waits

// Address space of this process in bytes; 0 if unknown.
rlim_t address_space() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

// The user's limit on the address space of a process.
rlim_t allowed_bytes() {
  rlimit memory{};
  return ::getrlimit(RLIMIT_AS, &memory) == 0 ? memory.rlim_cur : RLIM_INFINITY;
}

void limit_memory() {
  const rlim_t now = address_space(), most = now + (kMostMegabytes << 20);
  if (now == 0 || allowed_bytes() <= most) return;
  const rlimit memory{most, most};
  ::setrlimit(RLIMIT_AS, &memory);
}

void set_limits() {
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL, SIGXCPU, SIGINT, SIGTERM})
    std::signal(signal, SIG_DFL);
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);  // hides the C library's message about a broken heap
  ::dup2(nowhere, STDERR_FILENO);
  const rlimit time{kLongestSeconds, kLongestSeconds + 1}, no_core{0, 0};
  ::setrlimit(RLIMIT_CPU, &time);
  limit_memory();
  ::setrlimit(RLIMIT_CORE, &no_core);
}

// The message of the exception that `work` throws, or "". Runs in the child.
std::string error_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const std::bad_alloc&) {
    ::_exit(kNoMemory);
  } catch (const std::exception& error) {
    return *error.what() == '\0' ? "cannot be read" : error.what();
  }
}

[[noreturn]] void run_and_leave(const std::function<void()>& work, int to_parent) {
  set_limits();
  const std::string error = error_of(work).substr(0, kLongestMessage);
  const bool told = ::write(to_parent, error.data(), error.size()) == static_cast<ssize_t>(error.size());
  ::_exit(told ? 0 : 1);
}

// Reads until the other end is closed.
std::string read_all(int from) {
  std::string text;
  std::array<char, 4096> piece;
  for (;;) {
    const ssize_t count = ::read(from, piece.data(), piece.size());
    if (count > 0) text.append(piece.data(), static_cast<size_t>(count));
    else if (count == 0 || errno != EINTR) return text;
  }
}

std::string crash_of(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return "";
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoMemory)
    return fmt::format("it asks for more than {} MiB", kMostMegabytes);
  if (!WIFSIGNALED(status)) return "";
  const int signal = WTERMSIG(status);
  if (signal == SIGXCPU) return fmt::format("no end within {} s", kLongestSeconds);
  const bool scarce = signal == SIGKILL || allowed_bytes() != RLIM_INFINITY;
  return std::string(::strsignal(signal)) + (scarce ? ", or there is too little memory" : "");
}

}  // namespace

SandboxedRead read_sandboxed(const std::function<void()>& work) {
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {};  // no pipe left: run without the sandbox
  const pid_t child = ::fork();
  if (child == 0) run_and_leave(work, ends[1]);
  ::close(ends[1]);
  const std::string error = child < 0 ? "" : read_all(ends[0]);
  ::close(ends[0]);
  return child < 0 ? SandboxedRead{} : SandboxedRead{crash_of(child), error};
}

void try_in_child(const std::filesystem::path& path, const std::function<void()>& work) {
  const SandboxedRead seen = read_sandboxed(work);
  if (!seen.crash.empty())
    throw h5::Problem(
        fmt::format("{}: is damaged beyond reading ({}). Make or copy it again", path.string(), seen.crash));
  if (!seen.error.empty()) throw h5::Problem(seen.error);
}

}  // namespace kvreplay
