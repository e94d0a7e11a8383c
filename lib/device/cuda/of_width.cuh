#pragma once
#include "device/cuda/kernels.cuh"
#include "device/cuda/launch.cuh"
#include "device/kernels_of.hpp"

namespace kvreplay::cuda {

inline auto on(cudaStream_t stream) {
  return [stream](const auto& kernel) { launch(kernel, stream); };
}

template <int kWidth>
void OfWidth<kWidth>::attend(const AttendArgs& args, Grade grade, bool values, cudaStream_t stream) {
  launch_attend<kWidth>(args, grade, values, on(stream));
}
template <int kWidth>
void OfWidth<kWidth>::columns(const ColumnArgs& args, Grade grade, bool maxima, cudaStream_t stream) {
  launch_columns<kWidth>(args, grade, maxima, on(stream));
}

}  // namespace kvreplay::cuda
