#pragma once

namespace kvreplay::app {

// While one lives: SIGTERM and SIGUSR1 ask to finish the heads in work and begin no other, SIGINT to stop
// soon; another signal half a second later or more ends the process at once.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static bool stop();      // soon: what is in work is not finished
  static bool drain();     // any of the signals
  static int exit_code();  // 130 after SIGINT, 75 after the others
};

}  // namespace kvreplay::app
