#pragma once
#include "device/kernels/block_team.hpp"
#include "formats/row_coder.hpp"

namespace kvreplay {

// Codes the due rows of a cache. Never inlined: there are many policies, and coders are long.
template <Block B>
KVR_CALLED KVR_DEVICE RowCoder::Coded code_rows_of_block(const BlockTeam<B>& team, const RowCoder& coder,
                                                         BasicCache<float>& cache, int32_t exempt, double* scratch) {
  return coder.code_new(team, cache, exempt, scratch);
}

}  // namespace kvreplay
