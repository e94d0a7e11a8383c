#pragma once
#include <functional>
#include <string>
#include <vector>

#include "console.hpp"

namespace kvreplay::app {

struct PoolTask {
  std::string name;
  std::vector<std::string> command;
  std::string log;  // file that stdout and stderr are appended to
};

// Runs tasks as processes of this machine, `workers` at a time. A stop signal of this process is passed on to
// those that run, and no other is started. Returns when none runs any more; `ended` is called with the exit
// code of each (128 + the signal that killed it). Throws OutputError.
void run_pool(const std::vector<PoolTask>& tasks, int workers,
              const std::function<void(const PoolTask&, int code)>& ended);

}  // namespace kvreplay::app
