#pragma once
#include <cuda_runtime.h>

#include "device/runtime.hpp"

// The kernels that each translation unit of device code starts. Several units can compile in parallel.

namespace kvreplay::cuda {

template <int kWidth>
struct OfWidth {
  static void attend(const AttendArgs& args, Grade grade, bool values, cudaStream_t stream);
  static void columns(const ColumnArgs& args, Grade grade, bool maxima, cudaStream_t stream);
};
void start(const GatherKernel& kernel, cudaStream_t stream);
void start(const UnusableKernel& kernel, cudaStream_t stream);
void start(const PackKernel& kernel, cudaStream_t stream);
void start(const ExactMergeKernel& kernel, cudaStream_t stream);
void start(const CacheMergeKernel& kernel, cudaStream_t stream);
void start(const ProbabilityKernel& kernel, cudaStream_t stream);
void start(const RecallKernel& kernel, cudaStream_t stream);
void start(const DecideKernel& kernel, cudaStream_t stream);

}  // namespace kvreplay::cuda
