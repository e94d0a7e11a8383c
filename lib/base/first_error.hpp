#pragma once
#include <atomic>
#include <exception>
#include <mutex>

namespace kvreplay {

// Keeps the first exception of a parallel region and makes stopped() true for the other threads.
class FirstError {
 public:
  void keep(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    stopped_ = true;
  }
  bool stopped() const { return stopped_; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> stopped_ = false;
};

}  // namespace kvreplay
