#include "devices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/text.hpp"
#include "kernels/kernels.hpp"

namespace kvreplay::app {

int default_jobs() { return int(std::max(1u, std::thread::hardware_concurrency())); }

std::vector<Device> devices() {
  return {{"cpu", fmt::format("{} threads, instruction set {}", default_jobs(), isa_path())}};
}

void require_device(const RunConfig& config) {
  std::vector<std::string> names;
  for (const Device& device : devices()) names.push_back(device.name);
  if (std::find(names.begin(), names.end(), config.run.device) != names.end()) return;
  const auto mark = config.marks.find("run.device");
  throw DeviceError(
      config.at(mark == config.marks.end() ? Mark{} : mark->second, "error",
                fmt::format("there is no device {} here. Devices: {}", config.run.device, join(names))));
}

}  // namespace kvreplay::app
