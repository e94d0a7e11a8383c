#pragma once
#include <span>

#include "caches/cache_replay.hpp"
#include "caches/ledger.hpp"
#include "catalog/cell.hpp"
#include "measures/metrics.hpp"

namespace kvreplay {

// True for gqa.level query. A method that reads only keys and values decides the same in each cache, and is charged for
// all of them.
bool has_cache_for_each_query_head(const Cell& cell);

// True where the kv heads of a layer decide alone but share a table of pages: the layer is replayed together.
bool has_cache_for_each_kv_head(const Cell& cell);

// Sets up the first cache of a cell: resolves its method for the properties of the stream.
template <class Real>
CacheSetup cell_setup(const Cell& cell, const HeadStream<Real>& stream);

// Lists of tokens for a policy to keep; `all` must live as long as the result.
inline GivenLists given_lists(const TokenLists& all) {
  return {all.flat.data(), nullptr, nullptr, all.off.data(), int32_t(all.off.size()) - 1};
}

// If the cell has a file of uniforms, reads the random numbers of a kv head's policy from there. held: owns the
// numbers.
void inject(const Cell& cell, int32_t kv_head, CacheSetup& setup, std::vector<std::vector<double>>& held);

// Tokens that a cache without a method holds: all tokens, or those in a layer's window.
struct HeldTokens {
  int32_t at_end = 0, after_prompt = 0;  // after_prompt 0: there is no prompt
  double mean = 0;                       // mean over S_t, from the end of the prompt on
};
HeldTokens exact_cache_tokens(int32_t tokens, int32_t prompt, LayerWindow window);

// Context for reducing the ledgers of a cell's caches to sizes (docs/measures.md, section 3).
struct CellSizes {
  int32_t row_floats = 0;    // d + dv
  int32_t stored_bytes = 4;  // bytes of one number in the trace
  HeldTokens full;           // held by the exact cache
  bool shared = false;       // all caches read one full cache
  bool own_index = false;    // each cache also has its own index
};
// Writes the sizes. They are per set of tokens; bytes and numbers are summed over the sets of the cell. A cache that
// spans a layer charges each kv head for its own rows.
void measure_sizes(std::span<const Ledger* const> ledgers, const CellSizes& sizes, Measured& to);

}  // namespace kvreplay
