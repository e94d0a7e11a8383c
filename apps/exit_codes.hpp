#pragma once

namespace kvreplay::app {

// Exit codes that belong to no error class (README, "exit codes"; errors carry their own, base/errors.hpp).
constexpr int kSomeFailed = 1, kUsage = 2, kBadTrace = 3, kStoppedEarly = 75, kInterrupted = 130;

}  // namespace kvreplay::app
