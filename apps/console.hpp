#pragma once
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

namespace kvreplay::app {

// Results go to stdout, all messages about the work to stderr (and to --log FILE).
class Console {
 public:
  enum class Color { automatic, always, never };
  int verbosity = 0;  // -1 quiet: warnings and errors only; 1 and more: details
  Color color = Color::automatic;

  void open_log(const std::string& file);  // throws OutputError
  bool has_log() const { return log_ != nullptr; }

  void note(const std::string& text);     // progress of the work
  void detail(const std::string& text);   // with -v
  void warning(const std::string& text);  // complete lines `...: warning: ...` are coloured, others get the prefix
  void error(const std::string& text);
  void log_only(const std::string& text);

  // Writes a line that the next call replaces; end_redraw() ends it. Other messages appear above it.
  void redraw(const std::string& line);
  void end_redraw();

 private:
  void say(const std::string& text, const char* severity, const char* paint);
  bool paints() const;

  std::mutex mutex_;
  std::unique_ptr<FILE, int (*)(FILE*)> log_{nullptr, nullptr};
  std::string redrawn_;
};

// Writes to stdout; finish_output() reports a full disk or a closed pipe.
void print(const std::string& text);
void finish_output();  // throws OutputError

bool stderr_is_terminal();
int terminal_width();

// While an object exists, SIGTERM and SIGUSR1 ask to finish the heads in work and start no other, and SIGINT asks to
// stop soon. Another signal half a second later or more ends the process at once.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static bool stop();      // soon: heads in work are abandoned
  static bool drain();     // any of the signals
  static int exit_code();  // 130 after SIGINT, 75 after the others
};

}  // namespace kvreplay::app
