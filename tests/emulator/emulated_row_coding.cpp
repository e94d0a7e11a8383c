#include "device/kernels/policy_run.hpp"
#include "emulator/emulated_block.hpp"

// Codes the rows of a cache with a block on the CPU, for every method.

namespace kvreplay {

template RowCoder::Coded code_rows_of_block(const BlockTeam<emulator::EmulatedBlock>&, const RowCoder&,
                                            BasicCache<float>&, int32_t, double*);

}  // namespace kvreplay
