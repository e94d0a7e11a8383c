#pragma once
#include <memory>

#include "device/runtime.hpp"
#include "emulator/emulated_block.hpp"

namespace kvreplay::emulator {

// What decides a device's speed, counted. copied: bytes between host and device.
struct Work {
  int64_t launches = 0, barriers = 0, copied = 0;
};

// A device on the CPU, for tests. Memory starts as NaN and has a guard at both ends. After a write outside, release()
// makes the next wait() throw std::logic_error.
// work: where to count, or null.
std::unique_ptr<Runtime> open_runtime(Schedule schedule, Work* work = nullptr);

}  // namespace kvreplay::emulator
