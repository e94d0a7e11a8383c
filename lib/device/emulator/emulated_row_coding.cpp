#include "device/emulator/emulated_block.hpp"
#include "device/kernels/row_coding.hpp"

// How a block on the CPU codes the rows of a cache, whatever the method.

namespace kvreplay {

template RowCoder::Coded code_rows_of_block(const BlockTeam<emulator::EmulatedBlock>&, const RowCoder&,
                                            BasicCache<float>&, int32_t, double*);

}  // namespace kvreplay
