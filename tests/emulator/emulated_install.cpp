#include "device/devices.hpp"
#include "emulator/emulated_runtime.hpp"
#include "emulator/install.hpp"

namespace kvreplay::emulator {

bool install() {
  add_device_kind({"emulated",
                   [] {
                     return std::vector<DeviceInfo>{
                         {"emulated", "the kernels of the CUDA devices on one CPU thread each, for tests; slow"}};
                   },
                   [] { return std::string(); }, [](int) { return open_runtime(Schedule::forward); }});
  return true;
}

}  // namespace kvreplay::emulator
