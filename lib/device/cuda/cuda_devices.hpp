#pragma once
#include <memory>
#include <string>
#include <vector>

#include "device/devices.hpp"
#include "device/runtime.hpp"

// The CUDA devices of this machine. Without a CUDA compiler, no_cuda.cpp is linked instead.

namespace kvreplay::cuda {

std::vector<DeviceInfo> devices();
std::string why_not();
// Throws DeviceError if the device cannot be used.
std::unique_ptr<Runtime> open_runtime(int ordinal);

}  // namespace kvreplay::cuda
