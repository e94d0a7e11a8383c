#pragma once

namespace kvreplay::app {

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
