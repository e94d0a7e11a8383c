#pragma once
#include <stdexcept>

#include "backend/chain_kernel.hpp"
#include "backend/cuda/launch.cuh"
#include "catalog/chain_programs.hpp"

namespace kvreplay::cuda {

// The program of a method (ChainPrograms::cuda).
template <class P>
void start_chains(const ChainLaunch& l) {
  if (l.policy_bytes != sizeof(P)) throw std::logic_error("a policy is not what its program was built for");
  launch(ChainKernel<P>{static_cast<const ChainBody*>(l.bodies), static_cast<P*>(l.policies), l.count,
                        l.shared_bytes},
         static_cast<cudaStream_t>(const_cast<void*>(l.queue)));
}

}  // namespace kvreplay::cuda
