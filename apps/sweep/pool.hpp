#pragma once
#include <functional>
#include <string>
#include <vector>

namespace kvreplay::app {

struct PoolTask {
  std::string name;
  std::vector<std::string> command;
  std::string log;  // file that stdout and stderr are appended to
};

struct Ending {
  int code = 0;    // exit code
  int signal = 0;  // what killed it; 0: it left by itself
};

struct PoolReports {
  std::function<void(const PoolTask&, const Ending&)> ended;
  std::function<void()> moment;  // every some milliseconds
};

// Runs tasks as processes of this machine, `workers` at a time. A stop signal of this process is passed on to
// those that run, and no other is started. Returns when none runs any more. Throws OutputError.
void run_pool(const std::vector<PoolTask>& tasks, int workers, const PoolReports& reports);

}  // namespace kvreplay::app
