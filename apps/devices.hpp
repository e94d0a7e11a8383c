#pragma once
#include <string>
#include <vector>

#include "config/run_config.hpp"

namespace kvreplay::app {

struct Device {
  std::string name, description;
};
std::vector<Device> devices();

// Throws DeviceError when the machine or this build does not have what the configuration asks for.
void require_device(const RunConfig& config);

int default_jobs();

}  // namespace kvreplay::app
