#pragma once
#include <memory>

#include "device/runtime.hpp"
#include "emulator/emulated_block.hpp"

namespace kvreplay::emulator {

// A device on the CPU, for tests. Memory starts as NaN and has a guard at both ends. After a write outside, release()
// makes the next wait() throw std::logic_error.
std::unique_ptr<Runtime> open_runtime(Schedule schedule);

}  // namespace kvreplay::emulator
