#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "replay/head_device.hpp"

namespace kvreplay {

class Runtime;

struct DeviceInfo {
  std::string name, description;
};

// Devices beside the machine's cores, as `run.device` spells them: cuda:0, cuda:1, ... and, where it was
// built, `emulated`, which runs the kernels' text on the CPU.
std::vector<DeviceInfo> devices();
// Why there is no device of that name here, in a few words.
std::string why_not(const std::string& name);
// The device of that name (cuda: the first), for the heads of one run. Heads may be opened by several threads
// at a time. DeviceError when it is not there.
OpenHeadDevice open_device(const std::string& name);
// The same on runtimes that open() makes, as many as there are heads at a time.
OpenHeadDevice open_heads(std::function<std::unique_ptr<Runtime>()> open);

}  // namespace kvreplay
