#pragma once
#include "device/cuda/launch.cuh"
#include "device/kernels/policy_kernel.hpp"

namespace kvreplay::cuda {

// The program of a method (DevicePrograms::cuda).
template <class P>
void start_policies(const DeviceLaunch& l) {
  launch(policy_kernel<P>(l), static_cast<cudaStream_t>(const_cast<void*>(l.queue)));
}

}  // namespace kvreplay::cuda
