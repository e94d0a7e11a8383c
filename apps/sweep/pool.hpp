#pragma once
#include <functional>
#include <string>
#include <vector>

namespace kvreplay::app {

struct PoolTask {
  std::string name;
  std::vector<std::string> command;
  std::string log;  // stdout and stderr are appended to this file
};

struct Ending {
  int code = 0;    // exit code
  int signal = 0;  // signal that killed it; 0: it exited
};

struct PoolReports {
  std::function<void(const PoolTask&, const Ending&)> ended;
  std::function<void()> moment;  // called every few milliseconds
};

// Runs tasks as processes of this machine, `workers` at a time. A stop signal of this process is passed on to the
// running tasks, and no other is started. Returns when no task runs any more. Throws OutputError.
void run_pool(const std::vector<PoolTask>& tasks, int workers, const PoolReports& reports);

}  // namespace kvreplay::app
