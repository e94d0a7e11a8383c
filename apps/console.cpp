#include "apps/console.hpp"

#include <fmt/core.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <sstream>

#include "apps/exit_codes.hpp"
#include "base/errors.hpp"

namespace kvreplay::app {

void Console::open_log(const std::string& file) {
  log_ = {std::fopen(file.c_str(), "a"), std::fclose};
  if (log_ == nullptr) throw OutputError(fmt::format("--log {}: cannot be written", file));
}

void Console::note(const std::string& text) {
  if (verbosity >= 0) say(text, "", "");
  else log_only(text);
}

void Console::detail(const std::string& text) {
  if (verbosity >= 1) say(text, "", "");
  else log_only(text);
}

void Console::warning(const std::string& text) { say(text, "warning: ", "\x1b[33m"); }
void Console::error(const std::string& text) { say(text, "error: ", "\x1b[31m"); }

void Console::log_only(const std::string& text) {
  if (log_ == nullptr) return;
  std::fprintf(log_.get(), "%s\n", text.c_str());
  std::fflush(log_.get());
}

bool Console::paints() const {
  if (color != Color::automatic) return color == Color::always;
  return stderr_is_terminal() && std::getenv("NO_COLOR") == nullptr;
}

// Each line of `text` names its severity, or gets it as a prefix.
void Console::say(const std::string& text, const char* severity, const char* paint) {
  const std::lock_guard lock(mutex_);
  if (!redrawn_.empty()) std::fputs("\r\x1b[K", stderr);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string word = severity;
    size_t at = word.empty() ? std::string::npos : line.find(word);
    if (!word.empty() && at == std::string::npos) line = "kvreplay: " + word + line, at = 10;
    log_only(line);
    if (at != std::string::npos && paints())
      line = line.substr(0, at) + paint + word + "\x1b[0m" + line.substr(at + word.size());
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  if (!redrawn_.empty()) std::fputs(redrawn_.c_str(), stderr);
  std::fflush(stderr);
}

void Console::redraw(const std::string& line) {
  const std::lock_guard lock(mutex_);
  redrawn_ = line;
  std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
  std::fflush(stderr);
}

void Console::end_redraw() {
  const std::lock_guard lock(mutex_);
  if (!redrawn_.empty()) std::fputs("\n", stderr);
  redrawn_.clear();
}

// On a terminal, or in one file, messages follow what was printed before them.
void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);  // finish_output() reports a failure
}

void finish_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw OutputError("stdout cannot be written");
}

bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

int terminal_width() {
  constexpr int kUsual = 80;
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1};

// Some programs ask twice: `timeout` signals a process and then its group, which includes the process.
constexpr int64_t kOneRequestNs = 500'000'000;

std::atomic<int> received{0};
std::atomic<int64_t> asked_at_ns{0};  // 0: not yet
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "the handler touches nothing else");

int code_of(int signal) { return signal == SIGINT ? kInterrupted : kStoppedEarly; }

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

void handle(int signal) {
  const int64_t now = now_ns();
  int64_t first = 0;
  if (asked_at_ns.compare_exchange_strong(first, now)) received = signal;
  else if (now - first > kOneRequestNs) ::_exit(code_of(signal));
}

void install(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) sigaction(signal, &action, nullptr);
}

}  // namespace

StopSignals::StopSignals() {
  received = 0, asked_at_ns = 0;
  install(handle);
}
StopSignals::~StopSignals() { install(SIG_DFL); }
bool StopSignals::stop() { return received == SIGINT; }
bool StopSignals::drain() { return received != 0; }
int StopSignals::exit_code() { return code_of(received); }

}  // namespace kvreplay::app
