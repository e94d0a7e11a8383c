#pragma once
#include "backend/chain_kernel.hpp"
#include "backend/cuda/launch.cuh"

namespace kvreplay::cuda {

// The program of a method (ChainPrograms::cuda).
template <class P>
void start_chains(const ChainLaunch& l) {
  launch(chain_kernel<P>(l), static_cast<cudaStream_t>(const_cast<void*>(l.queue)));
}

}  // namespace kvreplay::cuda
