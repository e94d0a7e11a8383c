#pragma once
#include "core/linear.hpp"
#include "core/policy.hpp"
#include "methods/parts/read_sets.hpp"

namespace kvreplay {

// Reads of whole blocks (methods/block_mean.hpp, methods/block_max.hpp). Block b is tokens sinks + b block .. sinks +
// (b + 1) block - 1. It is a candidate once it is complete and has `recent` newer tokens. Tokens outside the candidates
// are always read.
struct ReadsBlocks {
  int32_t block = 128, sinks = 0, recent = 1;
  LayerSet dense_layers;
  int32_t budget = 0, tokens = 0;
  bool dense = false;
  std::span<double> state;  // [dim] sum of the group's queries, [blocks] scores, then the method's own

  template <class M>
  static void declare_blocks(auto& d) {
    d.integer("block", &M::block, {1, kManyTokens}, "tokens per block");
    d.integer("sinks", &M::sinks, {0, kManyTokens}, "first tokens that are always read");
    d.integer("recent", &M::recent, {1, kManyTokens}, "last tokens that are always read, the newest included");
    d.layers("dense_layers", &M::dense_layers, "layers that read everything");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens, tokens = context.tokens;
    dense = dense_layers.has(context.layer);
    const int64_t least = int64_t(sinks) + recent + 2 * int64_t(block) - 1;
    if (budget < tokens && budget < least)
      throw ParameterError("block", "block " + std::to_string(block) +
                                        " needs a budget of sinks + recent + 2 block - 1 = " + std::to_string(least) +
                                        " tokens, so that every step has room for a block; make block, sinks or recent "
                                        "smaller, or the budget larger");
  }
  Layout layout(const MethodContext& context) const { return {.state_doubles = context.shape.dim + blocks()}; }
  double token_score(const auto& cache, int32_t row) const {
    const Held at = held(cache);
    if (dense || row < at.row || row >= at.row + at.rows) return INFINITY;
    return state[size_t(cache.shape().dim + (cache.token(row) - sinks) / block - at.first)];
  }
  void traits(Traits& t) const { t.max_rows_read = dense || budget > tokens ? tokens : budget; }

 protected:
  // The rows of blocks that are candidates; a sliding window may have cut the first one.
  struct Held {
    int32_t first, count;  // blocks
    int32_t row, rows;     // their first row, their number of rows
  };
  struct Rows {
    int32_t first, count;
  };
  int32_t blocks() const { return tokens / block + 1; }
  // Number of candidates, evicted ones included, once token t is there.
  int32_t complete(int32_t t) const {
    const int32_t count = (t + 1 - recent - sinks) / block;
    return count > 0 ? count : 0;
  }
  Rows rows_of(const auto& cache, int32_t b) const {
    const int32_t begin = sinks + b * block - cache.token(0), end = begin + block, first = begin > 0 ? begin : 0;
    return {first, end > first ? end - first : 0};
  }
  Held held(const auto& cache) const {
    const int32_t oldest = cache.token(0), first = oldest > sinks ? (oldest - sinks) / block : 0;
    const int32_t count = complete(cache.token(cache.size() - 1)) - first;
    if (count <= 0) return {first, 0, 0, 0};
    const Rows last = rows_of(cache, first + count - 1);
    const int32_t row = rows_of(cache, first).first;
    return {first, count, row, last.first + last.count - row};
  }
  // Sum of the queries of the heads that decide together.
  template <class Real>
  std::span<const double> query_of_group(const Team auto& team, const StepQueries<Real>& queries) const {
    const std::span<double> sum = state.first(size_t(queries.dim));
    team.each(queries.dim, [&](int32_t c) {
      sum[size_t(c)] = 0;
      for (int32_t h = 0; h < queries.heads; ++h) sum[size_t(c)] += double(queries(h)[size_t(c)]);
    });
    return sum;
  }
  // Reads the candidates of the largest score(b), as many as the budget has room for, and all other tokens.
  void choose_blocks(const Team auto& team, const auto& cache, int32_t heads, uint8_t* chosen, auto score) const {
    const GroupReads reads{chosen, heads, cache.size()};
    reads.put_run(team, 0, cache.size(), kRead);
    const Held at = held(cache);
    if (dense) return;
    const int32_t room = (budget - (cache.size() - at.rows)) / block;
    const std::span<double> scores = state.subspan(size_t(cache.shape().dim), size_t(blocks()));
    team.each(at.count, [&](int32_t b) { scores[size_t(b)] = score(at.first + b); });
    choose_top(
        team, at.count, room, [&](int32_t b) { return scores[size_t(b)]; },
        [&](int32_t b, bool yes) {
          const Rows rows = rows_of(cache, at.first + b);
          reads.put_run(team, rows.first, rows.count, yes ? kRead : kUnread);
        });
  }
};

}  // namespace kvreplay
