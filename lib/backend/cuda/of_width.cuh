#pragma once
#include "backend/cuda/kernels.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/kernels_of.hpp"

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
template <int kWidth>
void OfWidth<kWidth>::score_chains(const ScoreChain* chains, int64_t count, size_t shared_bytes, Grade grade,
                                   cudaStream_t stream) {
  launch_score_chains<kWidth>(chains, count, shared_bytes, grade, on(stream));
}

}  // namespace kvreplay::cuda
