#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/portion.hpp"
#include "evaluate/head_device.hpp"

namespace kvreplay {

class Runtime;

struct DeviceInfo {
  std::string name, description;
};

// A kind of devices beside the machine's cores: CUDA's, and in tests the emulator.
struct DeviceKind {
  std::string name;  // a device is NAME:ORDINAL, or NAME
  std::function<std::vector<DeviceInfo>()> devices;
  std::function<std::string()> why_not;  // why there is none of that name here, in a few words
  std::function<std::unique_ptr<Runtime>(int ordinal)> open;
};
// To be called before anything below is, by programs that bring a kind of their own.
void add_device_kind(DeviceKind kind);

// All devices, as `run.device` spells them: cuda:0, cuda:1, ...
std::vector<DeviceInfo> devices();
// The whole name of a device: `cuda` is the first of them.
std::string full_name(const std::string& name);
// Why there is no device of that name here, in a few words.
std::string why_not(const std::string& name);
// A queue of work on the device of that name. DeviceError when it is not there.
std::unique_ptr<Runtime> open_runtime(const std::string& name);
// The device of that name, for the heads of one run. Heads may be opened by several threads at a time. DeviceError
// when it is not there.
OpenHeadDevice open_device(const std::string& name);
// Heads on runtimes that open() makes, as many as there are heads at a time.
OpenHeadDevice open_heads(std::function<std::unique_ptr<Runtime>()> open, Portion most = {});

}  // namespace kvreplay
