#pragma once
#include <algorithm>
#include <limits>

#include "device/cuda/cuda_block.cuh"
#include "device/cuda/errors.cuh"

namespace kvreplay::cuda {

// Always sets the same number, because other threads may launch the kernel with a larger or smaller one.
template <class Kernel>
void allow_most_shared_memory() {
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "be asked");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "be asked");
  check(cudaFuncSetAttribute(run_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "give shared memory");
}

// Starts a kernel in order on a stream.
template <class Kernel>
void launch(const Kernel& kernel, cudaStream_t stream) {
  const LaunchShape shape = kernel.shape();
  constexpr size_t kUsualSharedBytes = 48 << 10;
  if (shape.shared_bytes > kUsualSharedBytes) allow_most_shared_memory<Kernel>();
  constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();
  for (int64_t first = 0; first < shape.blocks; first += kMostBlocks) {
    const auto blocks = unsigned(std::min(kMostBlocks, shape.blocks - first));
    run_kernel<Kernel><<<blocks, unsigned(shape.threads), shape.shared_bytes, stream>>>(kernel, first);
    check(cudaGetLastError(), "start a kernel");
  }
}

}  // namespace kvreplay::cuda
