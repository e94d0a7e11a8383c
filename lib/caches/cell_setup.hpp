#pragma once
#include "caches/cache_replay.hpp"
#include "catalog/cell.hpp"

namespace kvreplay {

// True for gqa.level query. A method that reads only keys and values decides the same in each cache, and is charged for
// all of them.
bool has_cache_for_each_query_head(const Cell& cell);

// Sets up the first cache of a cell: resolves its method for the properties of the stream.
template <class Real>
CacheSetup cell_setup(const Cell& cell, const HeadStream<Real>& stream);

// Lists of tokens for a policy to keep; `all` must live as long as the result.
inline GivenLists given_lists(const TokenLists& all) {
  return {all.flat.data(), nullptr, nullptr, all.off.data(), int32_t(all.off.size()) - 1};
}

// If the cell has a file of uniforms, reads the policy's random numbers from there. held: owns the numbers.
void inject(const Cell& cell, CacheSetup& setup, std::vector<std::vector<double>>& held);

}  // namespace kvreplay
