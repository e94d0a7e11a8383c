#include "apps/devices.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "base/text.hpp"
#include "kernels/kernels.hpp"

namespace kvreplay::app {

int default_jobs() { return int(std::max(1u, std::thread::hardware_concurrency())); }

std::vector<DeviceInfo> all_devices() {
  std::vector<DeviceInfo> all{{"cpu", fmt::format("{} threads, instruction set {}", default_jobs(), isa_path())}};
  for (DeviceInfo& device : devices()) all.push_back(std::move(device));
  return all;
}

void require_device(const RunConfig& config) {
  const std::string& name = config.run.device;
  const auto mark = config.marks.find("run.device");
  const Mark at = mark == config.marks.end() ? Mark{} : mark->second;
  if (name == "cpu") return;
  std::vector<std::string> names;
  for (const DeviceInfo& device : all_devices()) names.push_back(device.name);
  if (std::find(names.begin(), names.end(), full_name(name)) == names.end())
    throw DeviceError(config.at(
        at, "error", fmt::format("there is no device {} here. Devices: {} ({})", name, join(names), why_not(name))));
  if (config.run.double_precision)
    throw ConfigError(config.at(at, "error",
                                fmt::format("{} is double, which device {} does not compute; use device cpu, or "
                                            "precision single",
                                            config.words->key("run.precision"), name)));
}

}  // namespace kvreplay::app
