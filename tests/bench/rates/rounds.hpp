#pragma once
#include <functional>
#include <string>
#include <vector>

namespace kvreplay::app {

// Something whose time is taken. `work` must be callable from several threads at once: it may change
// nothing but what it makes itself.
enum class Clock { cpu, wall };  // wall: a device works while the process sleeps
struct Task {
  std::string name;
  std::function<void()> work;
  Clock clock = Clock::cpu;
};

struct TaskTime {
  double min_s = 0, median_s = 0;  // of one call of `work`, by the task's clock
};

// CLOCK_PROCESS_CPUTIME_ID: what all threads of the process have used, so that a busy machine delays a
// measurement without entering it.
double process_cpu_s();

// Calls every task once a round, one task after the other, so that a disturbance meets all of them. `copies`
// calls run at the same time, one a thread, and share the process's seconds equally. `on_round` is told each
// round before it starts, from 1.
std::vector<TaskTime> measure_rounds(const std::vector<Task>& tasks, int rounds, int copies,
                                     const std::function<void(int)>& on_round);

// min and median; `seconds` must not be empty.
TaskTime summary_of(std::vector<double> seconds);

}  // namespace kvreplay::app
