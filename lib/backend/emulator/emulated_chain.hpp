#pragma once
#include "backend/chain_kernel.hpp"
#include "backend/emulator/emulated_block.hpp"

namespace kvreplay::emulator {

// The program of a method (ChainPrograms::emulated).
template <class P>
void start_chains(const ChainLaunch& l) {
  const ChainKernel<P> kernel = chain_kernel<P>(l);
  launch(kernel, kernel.shape(), *static_cast<const Schedule*>(l.queue));
}

}  // namespace kvreplay::emulator
