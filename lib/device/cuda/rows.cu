#include "device/cuda/kernels.cuh"
#include "device/cuda/launch.cuh"

namespace kvreplay::cuda {

void start(const GatherKernel& kernel, cudaStream_t stream) { launch(kernel, stream); }
void start(const UnusableKernel& kernel, cudaStream_t stream) { launch(kernel, stream); }
void start(const PackKernel& kernel, cudaStream_t stream) { launch(kernel, stream); }
void start(const ExactMergeKernel& kernel, cudaStream_t stream) { launch(kernel, stream); }
void start(const CacheMergeKernel& kernel, cudaStream_t stream) { launch(kernel, stream); }
void start(const ProbabilityKernel& kernel, cudaStream_t stream) { launch(kernel, stream); }
void start(const RecallKernel& kernel, cudaStream_t stream) { launch(kernel, stream); }

}  // namespace kvreplay::cuda
