#pragma once

namespace kvreplay::emulator {

// Makes `emulated` one of this program's devices (device/devices.hpp). Returns true.
bool install();

}  // namespace kvreplay::emulator
