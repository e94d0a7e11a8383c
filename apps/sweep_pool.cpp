#include "sweep_pool.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "base/errors.hpp"
#include "signals.hpp"

namespace kvreplay::app {
namespace {

class SpawnActions {
 public:
  explicit SpawnActions(const std::string& log) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                       0666);
    ::posix_spawn_file_actions_adddup2(&actions_, STDOUT_FILENO, STDERR_FILENO);
  }
  ~SpawnActions() { ::posix_spawn_file_actions_destroy(&actions_); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

pid_t start(const PoolTask& task) {
  std::vector<char*> words;
  for (const std::string& word : task.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const SpawnActions actions(task.log);
  pid_t process = 0;
  const int error = ::posix_spawn(&process, words[0], actions.get(), nullptr, words.data(), environ);
  if (error != 0)
    throw OutputError(fmt::format("{}: a worker cannot be started: {} (log: {})", words[0],
                                  std::strerror(error), task.log));
  return process;
}

Ending ending_of(int status) {
  if (WIFEXITED(status)) return {WEXITSTATUS(status), 0};
  return {0, WTERMSIG(status)};
}

void wait_a_moment() {
  const timespec moment{0, 20'000'000};
  ::nanosleep(&moment, nullptr);
}

}  // namespace

void run_pool(const std::vector<PoolTask>& tasks, int workers, const PoolReports& reports) {
  const StopSignals signals;
  std::map<pid_t, const PoolTask*> running;
  size_t next = 0;
  bool passed_on = false;
  while (!running.empty() || (next < tasks.size() && !StopSignals::drain())) {
    while (next < tasks.size() && int(running.size()) < workers && !StopSignals::drain()) {
      const PoolTask& task = tasks[next++];
      running.emplace(start(task), &task);
    }
    if (StopSignals::drain() && !std::exchange(passed_on, true))
      for (const auto& [process, task] : running) ::kill(process, StopSignals::stop() ? SIGINT : SIGTERM);
    int status = 0;
    const pid_t process = ::waitpid(-1, &status, WNOHANG);
    const auto found = running.find(process);
    if (found == running.end()) {
      reports.moment();
      wait_a_moment();
      continue;
    }
    const PoolTask& task = *found->second;
    running.erase(found);
    reports.ended(task, ending_of(status));
  }
}

}  // namespace kvreplay::app
