#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/head.hpp"
#include "evaluate/head_device.hpp"

namespace kvreplay {

class Runtime;

struct DeviceInfo {
  std::string name, description;
};

// A kind of device other than the machine's CPU: CUDA's, and in tests the emulator.
struct DeviceKind {
  std::string name;  // a device is NAME:ORDINAL, or NAME
  std::function<std::vector<DeviceInfo>()> devices;
  std::function<std::string()> why_not;  // why no device of this kind is available, in a few words
  std::function<std::unique_ptr<Runtime>(int ordinal)> open;
};
// Adds a kind of device. Must be called before the functions below, by programs that have such a kind.
void add_device_kind(DeviceKind kind);

// All devices, as `run.device` spells them: cuda:0, cuda:1, ...
std::vector<DeviceInfo> devices();
// The full name of a device: `cuda` is the first of its kind.
std::string full_name(const std::string& name);
// Why no device of that name is available here, in a few words.
std::string why_not(const std::string& name);
// Opens a queue of work on the device of that name. Throws DeviceError if the device is missing.
std::unique_ptr<Runtime> open_runtime(const std::string& name);
// The device of that name, for the heads of one run. Several threads may open heads at the same time. Throws
// DeviceError if the device is missing.
OpenHeadDevice open_device(const std::string& name);
// Heads on runtimes that open() creates; there are as many runtimes as heads at a time.
OpenHeadDevice open_heads(std::function<std::unique_ptr<Runtime>()> open, Portion most = {});

}  // namespace kvreplay
