#pragma once

namespace kvreplay::app {

// While one lives: SIGINT, SIGTERM and SIGUSR1 ask for a stop; a second one ends the process at once.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static bool stop();
  static int exit_code();  // 130 after SIGINT, 75 after the others
};

}  // namespace kvreplay::app
