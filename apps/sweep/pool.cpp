#include "apps/sweep/pool.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "apps/console.hpp"
#include "base/errors.hpp"

namespace kvreplay::app {
namespace {

// Workers get their own process group: Ctrl-C signals the group of this process, which passes the signal on. A second
// signal would end the workers at once.
class OwnGroup {
 public:
  OwnGroup() {
    ::posix_spawnattr_init(&attributes_);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
  }
  ~OwnGroup() { ::posix_spawnattr_destroy(&attributes_); }
  OwnGroup(const OwnGroup&) = delete;
  OwnGroup& operator=(const OwnGroup&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_{};
};

class SpawnActions {
 public:
  explicit SpawnActions(const std::string& log) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
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
  const OwnGroup group;
  pid_t process = 0;
  const int error = ::posix_spawn(&process, words[0], actions.get(), group.get(), words.data(), environ);
  if (error != 0)
    throw OutputError(
        fmt::format("{}: a worker cannot be started: {} (log: {})", words[0], std::strerror(error), task.log));
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

class Pool {
 public:
  // Stops running workers and waits for them, however the pool ends.
  ~Pool() {
    pass_on(SIGTERM);
    for (const auto& [process, task] : running_) ::waitpid(process, nullptr, 0);
  }
  size_t size() const { return running_.size(); }
  void add(const PoolTask& task) { running_.emplace(start(task), &task); }
  void pass_on(int signal) const {
    for (const auto& [process, task] : running_) ::kill(process, signal);
  }
  // A worker that has ended since the last call.
  std::optional<std::pair<const PoolTask*, Ending>> next_ended() {
    int status = 0;
    const auto found = running_.find(::waitpid(-1, &status, WNOHANG));
    if (found == running_.end()) return std::nullopt;
    const PoolTask* task = found->second;
    running_.erase(found);
    return std::pair(task, ending_of(status));
  }

 private:
  std::map<pid_t, const PoolTask*> running_;
};

}  // namespace

void run_pool(const std::vector<PoolTask>& tasks, int workers, const PoolReports& reports) {
  const StopSignals signals;
  Pool pool;
  size_t next = 0;
  bool passed_on = false;
  const auto may_start = [&] { return next < tasks.size() && !StopSignals::drain(); };
  while (pool.size() > 0 || may_start()) {
    while (may_start() && int(pool.size()) < workers) pool.add(tasks[next++]);
    if (StopSignals::drain() && !std::exchange(passed_on, true)) pool.pass_on(StopSignals::stop() ? SIGINT : SIGTERM);
    if (const auto ended = pool.next_ended()) {
      reports.ended(*ended->first, ended->second);
    } else {
      reports.moment();
      wait_a_moment();
    }
  }
}

}  // namespace kvreplay::app
