#pragma once
#include <functional>
#include <string>
#include <vector>

namespace kvreplay::app {

// A task to be timed. `work` must be callable from several threads at once, so it must not change shared data.
enum class Clock { cpu, wall };  // wall: for devices, which work while the process sleeps
struct Task {
  std::string name;
  std::function<void()> work;
  Clock clock = Clock::cpu;
};

struct TaskTime {
  double min_s = 0, median_s = 0;  // seconds of one call of `work`, by the task's clock
};

// CLOCK_PROCESS_CPUTIME_ID: CPU seconds of all threads of the process, so that a busy machine delays a measurement but
// does not change it.
double process_cpu_s();

// Calls every task once per round, one after the other, so that a disturbance affects all of them. `copies` calls run
// at a time, one per thread, and share the process's seconds equally. `on_round` gets the number of each round before
// it starts, from 1.
std::vector<TaskTime> measure_rounds(const std::vector<Task>& tasks, int rounds, int copies,
                                     const std::function<void(int)>& on_round);

// Minimum and median; `seconds` must not be empty.
TaskTime summary_of(std::vector<double> seconds);

}  // namespace kvreplay::app
