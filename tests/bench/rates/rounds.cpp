#include "tests/bench/rates/rounds.hpp"

#include <time.h>

#include <algorithm>
#include <chrono>

#include "base/threads.hpp"

namespace kvreplay::app {
namespace {

double now_s(Clock clock) {
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now().time_since_epoch();
  return clock == Clock::wall ? wall.count() : process_cpu_s();
}

double seconds_of(const Task& task, int copies) {
  const double start = now_s(task.clock);
  FirstError error;
  on_threads(copies, error, task.work);
  return (now_s(task.clock) - start) / copies;
}

}  // namespace

double process_cpu_s() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

TaskTime summary_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const size_t n = seconds.size();
  return {seconds.front(), (seconds[(n - 1) / 2] + seconds[n / 2]) / 2};
}

std::vector<TaskTime> measure_rounds(const std::vector<Task>& tasks, int rounds, int copies,
                                     const std::function<void(int)>& on_round) {
  std::vector<std::vector<double>> seconds(tasks.size());
  for (int round = 1; round <= rounds; ++round) {
    on_round(round);
    for (size_t i = 0; i < tasks.size(); ++i) seconds[i].push_back(seconds_of(tasks[i], copies));
  }
  std::vector<TaskTime> times;
  for (auto& s : seconds) times.push_back(summary_of(std::move(s)));
  return times;
}

}  // namespace kvreplay::app
