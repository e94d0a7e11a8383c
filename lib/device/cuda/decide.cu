#include "device/cuda/kernels.cuh"
#include "device/cuda/launch.cuh"

namespace kvreplay::cuda {

void start(const DecideKernel& kernel, cudaStream_t stream) { launch(kernel, stream); }

}  // namespace kvreplay::cuda
