#include "device/under_test.hpp"

#include <cstdlib>

#include "device/cuda/cuda_devices.hpp"
#include "emulator/emulated_runtime.hpp"

namespace kvreplay::test {

std::string device_under_test() {
  const char* const name = std::getenv("KVREPLAY_TEST_DEVICE");
  return name == nullptr ? "emulated" : name;
}

double float32_slack() { return device_under_test() == "emulated" ? 1 : 8; }

// main() has checked that there is a device of that name.
std::unique_ptr<Runtime> runtime_under_test(emulator::Schedule schedule) {
  const std::string name = device_under_test(), cuda = "cuda:";
  if (name.starts_with(cuda)) return cuda::open_runtime(std::stoi(name.substr(cuda.size())));
  return emulator::open_runtime(schedule);
}

Planes packed(Runtime& runtime, const std::vector<float>& rows, int32_t dim, int32_t width, Grade grade) {
  const DeviceArray<float> from = uploaded(runtime, rows);
  const size_t count = rows.size() / size_t(dim), numbers = count * size_t(width);
  Planes planes;
  planes.high = DeviceArray<uint16_t>(runtime, numbers);
  if (grade == Grade::single) planes.low = DeviceArray<uint16_t>(runtime, numbers);
  runtime.run(PackKernel{from.data(), planes.high.data(), planes.low.data(), int64_t(count), dim, width});
  return planes;
}

}  // namespace kvreplay::test
