#pragma once
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "device/devices.hpp"

namespace kvreplay::app {

// The CPU and all other devices.
std::vector<DeviceInfo> all_devices();

// Throws DeviceError if the machine or this build lacks what the configuration asks for.
void require_device(const RunConfig& config);

int default_jobs();

}  // namespace kvreplay::app
