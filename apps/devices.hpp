#pragma once
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "device/devices.hpp"

namespace kvreplay::app {

// The machine's cores, and every device beside them.
std::vector<DeviceInfo> all_devices();

// Throws DeviceError when the machine or this build does not have what the configuration asks for.
void require_device(const RunConfig& config);

int default_jobs();

}  // namespace kvreplay::app
