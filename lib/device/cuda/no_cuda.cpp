#include "base/errors.hpp"
#include "device/cuda/cuda_devices.hpp"

namespace kvreplay::cuda {

std::vector<DeviceInfo> devices() { return {}; }
std::string why_not() { return "this program was built without CUDA: cmake --preset cuda builds it with CUDA"; }
std::unique_ptr<Runtime> open_runtime(int) { throw DeviceError(why_not()); }

}  // namespace kvreplay::cuda
