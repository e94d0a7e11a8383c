#pragma once
#include <cmath>

#include "methods/parts/exact_logits.hpp"
#include "methods/parts/read_sets.hpp"

namespace kvreplay {

// BLASST, Yuan et al. 2025: skips tiles of values whose weights are negligible beside those read before.
//  1. Tiles of `tile` tokens, in ascending order. m = the largest logit of the tiles that were not skipped so far.
//  2. A tile is skipped iff exp(its largest logit - m) < lambda, in every head of the group.
//  3. Else it is read, and m is updated. Output: softmax over the tokens that were read.
// All keys are read, and the values of tiles that are not skipped. A skipped token has exp(l - m) < lambda, with m the
// last one, so at most the share beta = lambda n / (A + lambda n) of the attention is missed: n tokens were skipped,
// and A is the sum of exp(l - m) over those that were read.
struct SkipSoftmax {
  static constexpr MethodInfo info{
      .name = "skip_softmax",
      .title = "tiles without negligible weights",
      .source = "BLASST, Yuan et al. 2025; flashinfer, pull requests 2446 and 4859",
      .tier = 2,
      .memory = "the full cache; the rows read are an output",
      .deviation =
          "kernels also test tiles from the newest down, or for 32 rows at a time, and some take a threshold that does "
          "not depend on the length; the bound of the missed mass is ours.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .takes_budget = false,
      .implied_layout = true,
      .reads_full_cache = true,
  };
  static constexpr Hooks hooks{"choose extra_bytes missed_bound error_bound layout state"};
  double lambda = kUnset, scale_factor = kUnset;
  int32_t tile = 128;
  LayerSet dense_layers;
  int32_t tokens = 0, heads = 1;
  bool dense = false;
  std::span<double> state;  // [heads, tokens] logits, [heads] m, [heads] the largest logits of a tile, [heads] beta

  static void declare(auto& d) {
    d.real("lambda", &SkipSoftmax::lambda, {0, 1}, "threshold of a tile's largest weight, above 0",
           "must be given, or scale_factor");
    d.real("scale_factor", &SkipSoftmax::scale_factor, {0, 1e300},
           "above 0: lambda is min(1, scale_factor / (t + 1)) at token t", "lambda is constant");
    d.integer("tile", &SkipSoftmax::tile, {1, kManyTokens}, "tokens per tile");
    d.layers("dense_layers", &SkipSoftmax::dense_layers, "layers that read everything");
  }
  void resolve(const MethodContext& context) {
    if ((lambda == kUnset) == (scale_factor == kUnset))
      throw ParameterError("lambda", "the threshold is lambda, or scale_factor / (t + 1): give one of the two");
    if (lambda != kUnset && !(lambda > 0)) throw ParameterError("lambda", "lambda 0 skips nothing; take one above 0");
    if (scale_factor != kUnset && !(scale_factor > 0))
      throw ParameterError("scale_factor", "scale_factor 0 skips nothing; take one above 0");
    tokens = context.tokens, heads = context.shape.heads;
    dense = dense_layers.has(context.layer);
  }
  Layout layout(const MethodContext&) const {
    return {.state_doubles = dense ? 0 : int64_t(heads) * (int64_t(tokens) + 3)};
  }
  ErrorBound error_bound() const { return {ErrorBound::Norm::missed_mass, 0, 1}; }
  double missed_bound(int32_t head) const { return dense ? 0 : betas()[size_t(head)]; }
  // The keys of rows that no head of the group reads.
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    if (dense) return;
    c.sketch_floats_read = int64_t(cache.size()) * cache.shape().dim, c.sketch_floats_per_row = -cache.shape().dim;
  }

  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen) {
    const int32_t rows = cache.size();
    const GroupReads reads{chosen, heads, rows};
    if (dense) return reads.put_run(team, 0, rows, kRead);
    for (int32_t h = 0; h < heads; ++h) exact_logits(team, cache, queries, h, logits(h));
    team.each(heads, [&](int32_t h) { largest()[size_t(h)] = -INFINITY; });
    const double threshold = threshold_at(queries.token);
    int32_t skipped = 0;  // tokens
    for (int32_t first = 0, count = 0; first < rows; first += count) {
      const int32_t in_tile = cache.token(first) % tile;  // above 0 where a window cuts the first tile
      count = rows - first < tile - in_tile ? rows - first : tile - in_tile;
      const bool skips = is_negligible(team, first, count, threshold);
      reads.put_run(team, first, count, skips ? kUnread : kRead);
      if (skips) skipped += count;
      else team.each(heads, [&](int32_t h) { raise(largest()[size_t(h)], of_tile()[size_t(h)]); });
    }
    for (int32_t h = 0; h < heads; ++h) {
      const double a = team.sum(rows, [&](int32_t i) {
        return chosen[i] == kRead ? std::exp(logits(h)[size_t(i)] - largest()[size_t(h)]) : 0.0;
      });
      betas()[size_t(h)] = threshold * skipped / (a + threshold * skipped);
    }
  }

 private:
  static void raise(double& most, double x) { most = x > most ? x : most; }
  std::span<double> logits(int32_t head) const { return state.subspan(size_t(head) * size_t(tokens), size_t(tokens)); }
  std::span<double> largest() const { return by_head(0); }
  std::span<double> of_tile() const { return by_head(1); }
  std::span<double> betas() const { return by_head(2); }
  std::span<double> by_head(size_t which) const {
    return state.last(3 * size_t(heads)).subspan(which * size_t(heads), size_t(heads));
  }
  double threshold_at(int32_t t) const {
    if (lambda != kUnset) return lambda;
    return scale_factor < t + 1.0 ? scale_factor / (t + 1.0) : 1;
  }
  // Step 2; also finds the largest logits of the tile.
  bool is_negligible(const Team auto& team, int32_t first, int32_t count, double threshold) const {
    bool all = true;
    for (int32_t h = 0; h < heads; ++h) {
      const double top = team.largest(count, [&](int32_t i) { return logits(h)[size_t(first + i)]; }).score;
      of_tile()[size_t(h)] = top;
      all = all && std::exp(top - largest()[size_t(h)]) < threshold;
    }
    return all;
  }
};

}  // namespace kvreplay
