#include "backend/emulator/emulated_devices.hpp"

#include "backend/emulator/emulated_runtime.hpp"

namespace kvreplay::emulator {

std::vector<DeviceInfo> devices() {
  return {{"emulated", "the kernels of the CUDA devices on one CPU thread each, for tests; slow"}};
}
std::string why_not() { return ""; }
std::unique_ptr<Runtime> open_runtime() { return open_runtime(Schedule::forward); }

}  // namespace kvreplay::emulator
