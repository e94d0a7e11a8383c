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
// The whole name of a device: `cuda` is the first of them.
std::string full_name(const std::string& name);
// Why there is no device of that name here, in a few words.
std::string why_not(const std::string& name);
// A queue of work on the device of that name. DeviceError when it is not there.
std::unique_ptr<Runtime> open_runtime(const std::string& name);
// The device of that name, for the heads of one run. Heads may be opened by several threads
// at a time. DeviceError when it is not there.
OpenHeadDevice open_device(const std::string& name);
// The same on runtimes that open() makes, as many as there are heads at a time.
OpenHeadDevice open_heads(std::function<std::unique_ptr<Runtime>()> open);

}  // namespace kvreplay
