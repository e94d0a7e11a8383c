#pragma once
#include <cstddef>
#include <cstdint>

namespace kvreplay {

// Arguments for device blocks that replay caches with one method, one cache per block (device/kernels/policy_kernel.hpp
// documents the pointers).
struct DeviceLaunch {
  const void* tasks;
  void* policies;
  size_t policy_bytes;  // size of one policy, from the method's own compilation
  int64_t count;
  size_t shared_bytes;  // shared memory of one block
  const void* queue;    // the device's queue
};

// The device programs of one method; null for a kind of device that was not built.
struct DevicePrograms {
  using Start = void (*)(const DeviceLaunch&);
  Start emulated = nullptr, cuda = nullptr;
  bool operator==(const DevicePrograms&) const = default;
};

}  // namespace kvreplay
