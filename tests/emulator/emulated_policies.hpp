#pragma once
#include "device/kernels/policy_kernel.hpp"
#include "emulator/emulated_block.hpp"

// Compiled once, for all methods (emulated_row_coding.cpp).
extern template kvreplay::RowCoder::Coded kvreplay::code_rows_of_block(
    const kvreplay::BlockTeam<kvreplay::emulator::EmulatedBlock>&, const kvreplay::RowCoder&,
    kvreplay::BasicCache<float>&, int32_t, double*);

namespace kvreplay::emulator {

// Two warps are enough to expose work that only one of them has done, in a fraction of the time that a device's full
// blocks would take here.
constexpr int kEmulatedThreads = 64;

// The program of a method (DevicePrograms::emulated).
template <class P, int kThreads = kEmulatedThreads>
void start_policies(const DeviceLaunch& l) {
  const PolicyKernel<P> kernel = policy_kernel<P>(l);
  LaunchShape shape = kernel.shape();
  shape.threads = kThreads;
  launch(kernel, shape, *static_cast<const Schedule*>(l.queue));
}

}  // namespace kvreplay::emulator
