#include "backend/cuda/cuda_devices.hpp"
#include "base/errors.hpp"

namespace kvreplay::cuda {

std::vector<DeviceInfo> devices() { return {}; }
std::string why_not() { return "this program was built without CUDA; configure it where nvcc is found"; }
std::unique_ptr<Runtime> open_runtime(int) { throw DeviceError(why_not()); }

}  // namespace kvreplay::cuda
