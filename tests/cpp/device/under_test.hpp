#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/emulator/emulated_block.hpp"
#include "device/runtime.hpp"

// The device that kernels are tested on, and its memory. Tests tagged [device][kernel] hold on any device.
// Those tagged [emulator] look for what only the emulator shows: results that depend on which thread comes
// first, writes out of bounds, barriers that not all threads reach.

namespace kvreplay::test {

// What the environment variable KVREPLAY_TEST_DEVICE names, cuda:0 say; `emulated` when it is unset.
std::string device_under_test();
// With a queue of its own. schedule: the emulator's; other devices choose for themselves.
std::unique_ptr<Runtime> runtime_under_test(emulator::Schedule schedule = emulator::Schedule::forward);

// What a tolerance of float32 arithmetic is multiplied with. The emulator rounds every sum to nearest and
// finds exp2 to the last bit; tensor cores may cut sums off, which loses twice as much, and block.exp2() may
// be off by 2^-21, which is eight times as much.
double float32_slack();

inline constexpr emulator::Schedule kSchedules[] = {emulator::Schedule::forward, emulator::Schedule::backward,
                                                    emulator::Schedule::shuffled};

template <class T>
DeviceArray<T> uploaded(Runtime& runtime, const std::vector<T>& from) {
  return {runtime, std::span(from)};
}
// What a kernel leaves out shows on every device: fresh memory is NaN on the emulator alone.
template <class T>
DeviceArray<T> filled(Runtime& runtime, size_t count, T with) {
  return uploaded(runtime, std::vector<T>(count, with));
}
// Once everything that was started is done.
template <class T>
std::vector<T> downloaded(Runtime& runtime, const DeviceArray<T>& from) {
  std::vector<T> to(from.size());
  from.download(to);
  runtime.wait();
  return to;
}

// Rows of `dim` numbers as tensor cores take them.
struct Planes {
  DeviceArray<uint16_t> high, low;
};
// Without low where products are of `high` alone.
Planes packed(Runtime& runtime, const std::vector<float>& rows, int32_t dim, int32_t width, Grade grade);

}  // namespace kvreplay::test
