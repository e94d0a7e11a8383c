#pragma once
#include "methods/parts/reads_blocks.hpp"

namespace kvreplay {

// The gate of MoBA, Lu et al. 2025, section 2.2: reads the blocks whose mean key has the largest product with the
// query.
//  1. Tokens behind the sinks form blocks of `block` neighbours. A block is a candidate once it is complete and has
//     `recent` newer tokens.
//  2. Score of a candidate = <q, mean key>, summed over the heads that decide together.
//  3. Read all other tokens, and the best candidates that fit into the rest of the budget.
// With sinks 0, recent 1 and a budget of k blocks this is MoBA's gate with top k. With gqa.level kv and sinks it is the
// look-up of InfLLM, Xiao et al. 2024, but for the keys that represent a block and the positions of far blocks.
struct BlockMean : ReadsBlocks {
  static constexpr MethodInfo info{
      .name = "block_mean",
      .title = "blocks by their mean key",
      .source = "MoBA, Lu et al. 2025, section 2.2; InfLLM, Xiao et al. 2024",
      .tier = 2,
      .memory = "the full cache and a mean key per block; the budget bounds what is read",
      .deviation =
          "the current block of MoBA is the tokens that are always read; InfLLM represents a block by the 4 keys with "
          "the most attention, and lets far blocks share a position.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .implied_layout = true,
      .reads_full_cache = true,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{"read_prompt append choose token_score extra_bytes layout traits set_options state"};

  static void declare(auto& d) { declare_blocks<BlockMean>(d); }
  static void set_options(const BlockMean&, CommonOptions& options) { options.gqa_level = GqaLevel::query; }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = ReadsBlocks::layout(context).state_doubles + int64_t(blocks()) * context.shape.dim};
  }
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    if (!dense && cache.size() > 0) c.sketch_floats = int64_t(held(cache).count) * cache.shape().dim;
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>&, BasicCache<Real>& cache) {
    if (dense || cache.size() == 0) return;
    const Held at = held(cache);
    for (int32_t b = at.first; b < at.first + at.count; ++b) average(team, cache, b);
  }
  template <class Real>
  void append(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    cache.push(token);
    const int32_t now = complete(token.index);
    if (!dense && now > complete(token.index - 1)) average(team, cache, now - 1);
  }
  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen) {
    const std::span<const double> query = query_of_group(team, queries);
    choose_blocks(team, cache, queries.heads, chosen,
                  [&](int32_t b) { return wide_dot(query, mean_key(b, queries.dim)); });
  }

 private:
  std::span<double> mean_key(int32_t b, int32_t dim) const {
    return state.subspan(size_t(dim) * size_t(b + 1) + size_t(blocks()), size_t(dim));
  }
  void average(const Team auto& team, const auto& cache, int32_t b) const {
    const Rows rows = rows_of(cache, b);
    const std::span<double> mean = mean_key(b, cache.shape().dim);
    weighted_sum(
        rows.count, [](int32_t) { return 1.0; }, [&](int32_t i) { return cache.key(rows.first + i); }, mean);
    team.each(cache.shape().dim, [&](int32_t c) { mean[size_t(c)] /= rows.count; });
  }
};

}  // namespace kvreplay
