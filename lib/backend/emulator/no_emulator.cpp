#include "backend/emulator/emulated_devices.hpp"
#include "base/errors.hpp"

namespace kvreplay::emulator {

std::vector<DeviceInfo> devices() { return {}; }
std::string why_not() { return "this program was built without the emulator (KVREPLAY_EMULATOR)"; }
std::unique_ptr<Runtime> open_runtime() { throw DeviceError(why_not()); }

}  // namespace kvreplay::emulator
