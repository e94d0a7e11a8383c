#include "base/threads.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace kvreplay {
namespace {

// Joins all started threads, even after an exception.
class Started {
 public:
  ~Started() {
    for (std::thread& thread : threads_) thread.join();
  }
  void add(const std::function<void()>& work) { threads_.emplace_back(work); }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace

void on_threads(int threads, FirstError& error, const std::function<void()>& work) {
  const auto guarded = [&] {
    try {
      work();
    } catch (...) {
      error.keep(std::current_exception());
    }
  };
  try {
    Started others;
    for (int i = 1; i < threads; ++i) others.add(guarded);
    guarded();
  } catch (...) {
    error.keep(std::current_exception());
  }
  error.rethrow();
}

void for_each_on_threads(int threads, size_t count, FirstError& error, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  on_threads(int(std::min(size_t(std::max(threads, 1)), std::max(count, size_t{1}))), error, [&] {
    for (size_t i = next++; i < count && !error.stopped(); i = next++) work(i);
  });
}

}  // namespace kvreplay
