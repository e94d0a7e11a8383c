#include "apps/console.hpp"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <sstream>

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

}  // namespace kvreplay::app
