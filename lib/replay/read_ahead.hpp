#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace kvreplay {

// One thread that loads items 0, 1, ... in order, one item ahead of the threads that work on them. HDF5 has one lock,
// so more readers would not read faster.
template <class Item>
class ReadAhead {
 public:
  // load(i) may throw: next() then throws it once, and there are no further items.
  ReadAhead(size_t count, std::function<Item(size_t)> load)
      : count_(count), load_(std::move(load)), thread_([this] { run(); }) {}
  ~ReadAhead() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // The next item and its number; nothing when all are taken. May be called from any number of threads.
  std::optional<std::pair<size_t, Item>> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ready_ || error_ || over_; });
    if (error_) {
      over_ = true;
      changed_.notify_all();
      std::rethrow_exception(std::exchange(error_, nullptr));
    }
    if (!ready_) return std::nullopt;
    std::optional<std::pair<size_t, Item>> item = std::move(ready_);
    ready_.reset();
    changed_.notify_all();
    return item;
  }

 private:
  void run() {
    for (size_t i = 0; i < count_; ++i) {
      if (!wait_for_room()) return;
      try {
        Item item = load_(i);
        const std::lock_guard lock(mutex_);
        ready_.emplace(i, std::move(item));
      } catch (...) {
        const std::lock_guard lock(mutex_);
        error_ = std::current_exception();
      }
      changed_.notify_all();
      if (failed()) return;
    }
    wait_for_room();
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  // Waits until no item is ready, so that at most one is held. Returns false if no further item is wanted.
  bool wait_for_room() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_ || over_; });
    return !over_;
  }
  bool failed() {
    const std::lock_guard lock(mutex_);
    return error_ != nullptr || over_;
  }

  const size_t count_;
  const std::function<Item(size_t)> load_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::pair<size_t, Item>> ready_;
  std::exception_ptr error_;
  bool over_ = false;
  std::thread thread_;  // last: it uses all members above
};

}  // namespace kvreplay
