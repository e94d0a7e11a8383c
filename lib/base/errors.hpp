#pragma once
#include <atomic>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>

// Errors that users can cause. Each has the process's exit code (README, "exit codes") and a message that names the
// place (file, line, dataset), the value and the remedy. Errors in the program itself are asserts.

namespace kvreplay {

class UserError : public std::runtime_error {
 public:
  UserError(int exit_code, const std::string& message) : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

struct ConfigError : UserError {  // bad usage or configuration
  explicit ConfigError(const std::string& m) : UserError(2, m) {}
};
struct TraceError : UserError {  // bad or missing trace
  explicit TraceError(const std::string& m) : UserError(3, m) {}
};
struct DeviceError : UserError {  // no device, or out of memory
  explicit DeviceError(const std::string& m) : UserError(4, m) {}
};
struct OutputError : UserError {  // the output directory cannot be written
  explicit OutputError(const std::string& m) : UserError(2, m) {}
};

struct InconsistentError : UserError {  // contradictory results, detected when they are merged
  explicit InconsistentError(const std::string& m) : UserError(5, m) {}
};

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
