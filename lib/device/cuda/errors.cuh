#pragma once
#include <cuda_runtime.h>

#include <string>

#include "base/errors.hpp"

namespace kvreplay::cuda {

// what: "copy to the device"
inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw DeviceError(std::string("the CUDA device failed to ") + what + ": " + cudaGetErrorString(error));
}

}  // namespace kvreplay::cuda
