#pragma once
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

}  // namespace kvreplay
