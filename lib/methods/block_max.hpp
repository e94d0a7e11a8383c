#pragma once
#include "methods/parts/reads_blocks.hpp"

namespace kvreplay {

// Blocks by their best key, the rule of MiniMax-M3's sparse attention: what a trained index of that form can reach.
//  1. Tokens behind the sinks form blocks of `block` neighbours. A block is a candidate once it is complete and has
//     `recent` newer tokens.
//  2. Score of a candidate = the largest <q, k> of its keys, with q summed over the heads that decide together.
//  3. Read all other tokens, and the best candidates that fit into the rest of the budget.
struct BlockMax : ReadsBlocks {
  static constexpr MethodInfo info{
      .name = "block_max",
      .title = "blocks by their best key",
      .source = "MiniMax-M3 sparse attention, as TensorRT-LLM and vLLM document it",
      .tier = 3,
      .memory = "the full cache; the budget bounds what is read, besides the keys that a step scans",
      .deviation =
          "a proxy: the model's own queries and keys replace the trained ones of the index, so it is an upper line for "
          "that rule. It scans d numbers a token, the trained index 128.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .implied_layout = true,
      .reads_full_cache = true,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{"choose token_score extra_bytes layout traits state"};

  static void declare(auto& d) { declare_blocks<BlockMax>(d); }
  // Nothing is stored, and a step reads every key.
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    if (!dense) c.sketch_floats_read = int64_t(cache.size()) * cache.shape().dim;
  }
  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen) {
    const std::span<const double> query = query_of_group(team, queries);
    choose_blocks(team, cache, queries.heads, chosen, [&](int32_t b) {
      const Rows rows = rows_of(cache, b);
      double most = -INFINITY;
      for (int32_t i = rows.first; i < rows.first + rows.count; ++i) {
        const double product = wide_dot(query, cache.key(i));
        most = product > most ? product : most;
      }
      return most;
    });
  }
};

}  // namespace kvreplay
