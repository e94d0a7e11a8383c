#pragma once
#include <cmath>

#include "core/policy.hpp"
#include "core/vectors.hpp"

namespace kvreplay {

// Double Sparsity, Yang et al. 2024, section 3: a few channels decide which tokens are read.
//  1. Calibration, on rows of this or other text: per query head the d / group_factor channels with the largest mean
//     |q_c k_c|, for the key of each row itself.
//  2. Labels: these channels of keys and of the query, each row rounded to 2^label_bits levels between its extremes.
//  3. Read exactly the top B tokens by the product of labels, the newest included among the candidates; each query head
//     selects separately.
struct DoubleSparsity {
  static constexpr MethodInfo info{
      .name = "doublesparsity",
      .title = "tokens by few channels of their keys",
      .source = "Double Sparsity, Yang et al. 2024, section 3",
      .tier = 3,
      .memory = "the full cache, and a label for each token and query head; the budget bounds what is read",
      .deviation =
          "the published channels have no documented rule: they are ranked by products, on the prompt's rows unless "
          "`calibration` names other text. A row of equal numbers keeps them.",
      .oneshots = false,
      .any_positions = false,
      .implied_layout = true,
      .reads_full_cache = true,
      .own_index = true,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{"read_prompt choose extra_bytes layout needs traits set_options state"};
  static constexpr int32_t kExactBits = 16;
  int32_t group_factor = 8, label_bits = 4;
  LayerSet dense_layers{{0b11}};
  int32_t budget = 0, tokens = 0, channels = 0;
  bool dense = false;
  std::span<double> state;  // [heads, dim] 1 for selected channels, [tokens] products

  static void declare(auto& d) {
    d.calibration("rows that rank the channels: those of this prompt, or of other text");
    d.integer("group_factor", &DoubleSparsity::group_factor, {1, kManyTokens},
              "channels of a key per channel of its label");
    d.integer("label_bits", &DoubleSparsity::label_bits, {1, kExactBits},
              "bits per number of a label; 16: not rounded");
    d.layers("dense_layers", &DoubleSparsity::dense_layers, "layers that read everything");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens, tokens = context.tokens;
    dense = dense_layers.has(context.layer);
    channels = context.shape.dim / group_factor > 1 ? context.shape.dim / group_factor : 1;
  }
  static void set_options(const DoubleSparsity&, CommonOptions& options) { options.gqa_level = GqaLevel::query; }
  Layout layout(const MethodContext& context) const {
    if (dense) return {};
    return {.state_doubles = int64_t(context.shape.heads) * context.shape.dim + context.tokens};
  }
  PromptNeeds needs(const MethodContext&) const { return {.whole = !dense, .known = {.channels = !dense}}; }
  void traits(Traits& t) const { t.max_rows_read = dense || budget > tokens ? tokens : budget; }
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    if (dense) return;
    const int64_t labels = int64_t(cache.size()) * cache.shape().heads;
    c.aux_bytes = (labels * channels * label_bits + 7) / 8;
    c.sketch_floats = label_bits < kExactBits ? 2 * labels : 0;
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>&) {
    const HeadShape shape = prompt.shape();
    if (dense) return;
    for (int32_t h = 0; h < shape.heads; ++h) {
      const std::span<double> counts = channels_of(shape.dim, h);
      team.each(shape.dim, [&](int32_t rank) {
        counts[size_t(prompt.ranked_channels(h)[size_t(rank)])] = rank < channels ? 1 : 0;
      });
    }
  }
  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen) {
    const int32_t rows = cache.size();
    if (dense || rows <= budget) return team.each(rows * queries.heads, [&](int32_t i) { chosen[i] = kRead; });
    const std::span<double> products = state.last(size_t(tokens));
    for (int32_t h = 0; h < queries.heads; ++h) {
      const std::span<double> counts = channels_of(queries.dim, h);
      const Levels of_query = levels(queries(h), counts);
      team.each(rows, [&](int32_t i) {
        const auto key = cache.key(i, cache.shape().block_of(h));
        const Levels of_key = levels(key, counts);
        double s = 0;
        for (size_t c = 0; c < counts.size(); ++c)
          if (counts[c] != 0) s += of_query(double(queries(h)[c])) * of_key(double(key[c]));
        products[size_t(i)] = s;
      });
      choose_top(
          team, rows, budget, [&](int32_t i) { return products[size_t(i)]; },
          [&](int32_t i, bool yes) { chosen[int64_t(h) * rows + i] = yes ? kRead : kUnread; });
    }
  }

 private:
  // Rounding of the numbers of a label.
  struct Levels {
    double low, step;  // step 0: no rounding
    double operator()(double x) const { return step > 0 ? low + step * std::nearbyint((x - low) / step) : x; }
  };
  std::span<double> channels_of(int32_t dim, int32_t head) const {
    return state.subspan(size_t(head) * size_t(dim), size_t(dim));
  }
  template <class Real>
  Levels levels(std::span<const Real> vector, std::span<const double> counts) const {
    double low = INFINITY, high = -INFINITY;
    for (size_t c = 0; c < counts.size(); ++c) {
      if (counts[c] == 0) continue;
      const double x = double(vector[c]);
      low = x < low ? x : low, high = x > high ? x : high;
    }
    return {low, label_bits < kExactBits ? (high - low) / ((1 << label_bits) - 1) : 0};
  }
};

}  // namespace kvreplay
