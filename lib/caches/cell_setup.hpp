#pragma once
#include "caches/cache_replay.hpp"
#include "catalog/cell.hpp"

namespace kvreplay {

// gqa.level query. What looks only at keys and values decides the same in each of them, and is charged for all.
bool has_cache_for_each_query_head(const Cell& cell);

// How the first cache of a cell is set up on a stream: its method resolved for what the stream is like.
template <class Real>
CacheSetup cell_setup(const Cell& cell, const HeadStream<Real>& stream);

// A policy is told what it keeps; the lists outlive it.
inline GivenLists given_lists(const TokenLists& all) {
  return {all.flat.data(), nullptr, nullptr, all.off.data(), int32_t(all.off.size()) - 1};
}

// Where the cell is given a file of uniforms, what it draws is read there. held: owns the numbers.
void inject(const Cell& cell, CacheSetup& setup, std::vector<std::vector<double>>& held);

}  // namespace kvreplay
