#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/runtime.hpp"
#include "emulator/emulated_block.hpp"

// The device that kernels are tested on, and its memory. Tests tagged [device][kernel] hold on any device. Tests tagged
// [emulator] look for mistakes that only the emulator finds: results that depend on the order of threads, writes out of
// bounds, barriers that not all threads reach.

namespace kvreplay::test {

// The device named by the environment variable KVREPLAY_TEST_DEVICE, for example cuda:0; `emulated` if it is unset.
std::string device_under_test();
// A runtime with a separate queue. schedule: the emulator's order of threads; other devices choose their own.
std::unique_ptr<Runtime> runtime_under_test(emulator::Schedule schedule = emulator::Schedule::forward);

// Factor for tolerances of float32 arithmetic. The emulator rounds every sum to nearest and computes exp2 to the last
// bit. Tensor cores may truncate sums, which loses twice as much, and block.exp2() may be off by 2^-21, which is eight
// times as much.
double float32_slack();

inline constexpr emulator::Schedule kSchedules[] = {emulator::Schedule::forward, emulator::Schedule::backward,
                                                    emulator::Schedule::shuffled};

template <class T>
DeviceArray<T> uploaded(Runtime& runtime, const std::vector<T>& from) {
  return {runtime, std::span(from)};
}
// Device memory filled with a value, so that numbers which a kernel leaves unwritten show on every device. Only the
// emulator fills fresh memory with NaN.
template <class T>
DeviceArray<T> filled(Runtime& runtime, size_t count, T with) {
  return uploaded(runtime, std::vector<T>(count, with));
}
// Waits for all started work, then returns the array.
template <class T>
std::vector<T> downloaded(Runtime& runtime, const DeviceArray<T>& from) {
  std::vector<T> to(from.size());
  from.download(to);
  runtime.wait();
  return to;
}

// Rows of `dim` numbers in the form that tensor cores take.
struct Planes {
  DeviceArray<uint16_t> high, low;
};
// `low` stays empty if products use only `high`.
Planes packed(Runtime& runtime, const std::vector<float>& rows, int32_t dim, int32_t width, Grade grade);

}  // namespace kvreplay::test
