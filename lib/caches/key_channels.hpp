#pragma once
#include <cstdint>

#include "core/cache.hpp"
#include "core/common_options.hpp"
#include "exact/head_stream.hpp"
#include "formats/lacking_keys.hpp"

namespace kvreplay {

// The option `think`. ThinK, Xu et al. 2024; kvpress, think_press.py.
//  1. End of the prompt, over the kept prompt tokens: the score of channel c is the mean of q_c^2 over the last
//     `window` queries and the group, times the mean of k_c^2.
//  2. The floor(ratio d) lowest channels are dropped from these keys; among equals the higher ones. Later keys stay.
// A dropped channel holds a 0, which adds nothing to products. It is not stored, and not coded.

// Drops the channels from all rows of the cache. Call at the end of the prompt, before rows are coded.
template <class Real>
LackingKeys drop_channels(const Think& think, const HeadStream<Real>& stream, int32_t first_head,
                          BasicCache<Real>& cache);
// Bytes that say which channels were dropped, over all kv heads of the cache.
int64_t mask_bytes(const Think& think, const HeadShape& shape);

}  // namespace kvreplay
