#pragma once
#include <cstddef>
#include <cstdint>

namespace kvreplay {

// Starts blocks of a device that replay caches by a method's text, one cache a block
// (device/kernels/policy_kernel.hpp says what the pointers are).
struct DeviceLaunch {
  const void* tasks;
  void* policies;
  size_t policy_bytes;  // of one; as the method's own compilation knows it
  int64_t count;
  size_t shared_bytes;  // of a block
  const void* queue;    // the device's
};

// The programs of one method, for each kind of device; null where it was not built.
struct DevicePrograms {
  using Start = void (*)(const DeviceLaunch&);
  Start emulated = nullptr, cuda = nullptr;
  bool operator==(const DevicePrograms&) const = default;
};

}  // namespace kvreplay
