#pragma once
#include <memory>

#include "device/emulator/emulated_block.hpp"
#include "device/runtime.hpp"

namespace kvreplay::emulator {

// A device on the CPU, for tests. Memory starts as NaN and is watched at both ends; release() after a write
// outside ends in wait() of the next call throwing std::logic_error.
std::unique_ptr<Runtime> open_runtime(Schedule schedule);

}  // namespace kvreplay::emulator
