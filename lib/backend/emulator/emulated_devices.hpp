#pragma once
#include <memory>
#include <string>
#include <vector>

#include "backend/devices.hpp"
#include "backend/runtime.hpp"

// The emulator as a device, where it was built (it needs Boost.Context); no_emulator.cpp answers elsewhere.

namespace kvreplay::emulator {

std::vector<DeviceInfo> devices();
std::string why_not();
std::unique_ptr<Runtime> open_runtime();

}  // namespace kvreplay::emulator
