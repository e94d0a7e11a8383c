#pragma once
#include <stdexcept>

#include "backend/chain_kernel.hpp"
#include "backend/emulator/emulated_block.hpp"
#include "catalog/chain_programs.hpp"

namespace kvreplay::emulator {

// The program of a method (ChainPrograms::emulated).
template <class P>
void start_chains(const ChainLaunch& l) {
  if (l.policy_bytes != sizeof(P)) throw std::logic_error("a policy is not what its program was built for");
  const ChainKernel<P> kernel{static_cast<const ChainBody*>(l.bodies), static_cast<P*>(l.policies), l.count,
                              l.shared_bytes};
  launch(kernel, kernel.shape(), *static_cast<const Schedule*>(l.queue));
}

}  // namespace kvreplay::emulator
