#pragma once
#include <cmath>

#include "core/vectors.hpp"
#include "methods/parts/exact_logits.hpp"
#include "methods/parts/read_sets.hpp"

namespace kvreplay {

// SparQ, Ribar et al. 2024, section 4 and Algorithm 1: a query's largest channels decide which tokens are read, and the
// mean value stands for the others.
//  1. The r channels with the largest sum over the group of |q_c|.
//  2. Per head s_j = scale sqrt(||q||_1 / ||q_r||_1) sum over these channels of q_c k_jc.
//  3. S = the newest `recent` tokens, and the top B - recent of the others by the group's sum of s_j.
//  4. alpha = sum over S of softmax(s). Output = alpha (exact attention over S) + (1 - alpha) (mean of all values).
// The output is that of weights alpha + (1 - alpha) Z_S / (n e_j) on the n tokens, alpha = 0 outside S, where e_j =
// exp(l_j) and Z_S is their sum over S: a sink logit then takes the same share as in attention over S.
struct SparQ {
  static constexpr MethodInfo info{
      .name = "sparq",
      .title = "tokens by the largest channels of the query, and the mean value",
      .source = "SparQ, Ribar et al. 2024, section 4",
      .tier = 3,
      .memory = "the full cache, a copy of its keys by channel, and the mean value; the budget bounds what is read",
      .deviation = "the release reads one token more than its k, so B = k + 1.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .only_level = GqaLevel::kv,
      .implied_layout = true,
      .reads_full_cache = true,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{"choose extra_bytes layout traits state"};
  static constexpr int32_t kChannels = 16;  // default of `r`, where a key has as many channels
  int32_t r = kDerived, recent = kDerived;
  bool reallocate = true;
  LayerSet dense_layers{};
  int32_t budget = 0, tokens = 0;
  bool dense = false;
  std::span<double> state;  // [dim] 1 for chosen channels, [tokens] scores of a head, [tokens] of the group

  static void declare(auto& d) {
    d.integer("r", &SparQ::r, {1, kManyTokens}, "channels of the query that decide",
              "16, or the channels of a key where they are fewer");
    d.integer("recent", &SparQ::recent, {1, kManyTokens}, "last tokens that are always read, the newest included",
              "floor(B/4)");
    d.boolean("reallocate", &SparQ::reallocate, "the mean value takes the attention that is not read");
    d.layers("dense_layers", &SparQ::dense_layers, "layers that read everything");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens, tokens = context.tokens;
    dense = dense_layers.has(context.layer);
    if (recent == kDerived) recent = budget / 4 > 1 ? budget / 4 : 1;
    if (recent > budget) throw protection_error(0, recent, budget);
    const int32_t dim = context.shape.dim;
    if (r == kDerived) r = dim < kChannels && dim > 0 ? dim : kChannels;
    if (dim > 0 && r > dim)
      throw ParameterError("r", "r " + std::to_string(r) + " exceeds the " + std::to_string(dim) +
                                    " channels of a key; take fewer channels");
  }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = dense ? 0 : context.shape.dim + 2 * int64_t(tokens)};
  }
  void traits(Traits& t) const { t.max_rows_read = dense || budget > tokens ? tokens : budget; }
  // A step reads r channels of the copy, and the mean value.
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    if (dense) return;
    c.sketch_floats = int64_t(cache.size()) * cache.shape().dim;
    c.sketch_floats_read = int64_t(cache.size()) * r + (reallocate ? cache.shape().v_dim : 0);
  }

  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen,
              double* weights) {
    const GroupReads reads{chosen, queries.heads, cache.size()};
    team.each(reads.rows * reads.heads, [&](int32_t i) { weights[i] = 1; });
    if (dense || reads.rows <= budget) return reads.put_run(team, 0, reads.rows, kRead);
    const int32_t others = reads.rows - recent;
    const std::span<double> together = state.last(size_t(tokens));
    choose_channels(team, queries);
    team.each(others, [&](int32_t i) { together[size_t(i)] = 0; });
    for (int32_t h = 0; h < queries.heads; ++h) {
      const std::span<double> own = estimate(team, cache, queries, h);
      team.each(others, [&](int32_t i) { together[size_t(i)] += own[size_t(i)]; });
    }
    reads.put_run(team, others, recent, kRead);
    choose_top(
        team, others, budget - recent, [&](int32_t i) { return together[size_t(i)]; },
        [&](int32_t i, bool yes) { reads.put(i, yes ? kRead : kUnread); });
    if (!reallocate) return;
    for (int32_t h = 0; h < queries.heads; ++h) mix(team, cache, queries, h, chosen, weights);
  }

 private:
  // Step 1.
  template <class Real>
  void choose_channels(const Team auto& team, const StepQueries<Real>& queries) const {
    choose_top(
        team, queries.dim, r,
        [&](int32_t c) {
          double sum = 0;
          for (int32_t h = 0; h < queries.heads; ++h) sum += std::abs(double(queries(h)[size_t(c)]));
          return sum;
        },
        [&](int32_t c, bool yes) { state[size_t(c)] = yes ? 1 : 0; });
  }
  // Step 2: the logits s of a head, one per row.
  template <class Real>
  std::span<double> estimate(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries,
                             int32_t head) const {
    const std::span<double> s = state.subspan(size_t(queries.dim), size_t(cache.size()));
    const auto q = queries(head);
    double all = 0, counted = 0;
    for (int32_t c = 0; c < queries.dim; ++c) {
      const double length = std::abs(double(q[size_t(c)]));
      all += length, counted += state[size_t(c)] * length;
    }
    const double factor = queries.scale * (counted > 0 ? std::sqrt(all / counted) : 1);
    team.each(cache.size(), [&](int32_t i) {
      const auto key = cache.key(i);
      double sum = 0;
      for (int32_t c = 0; c < queries.dim; ++c) sum += state[size_t(c)] * double(q[size_t(c)]) * double(key[size_t(c)]);
      s[size_t(i)] = factor * sum;
    });
    return s;
  }
  // Step 4: weights of a head's rows in both sums.
  template <class Real>
  void mix(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, int32_t head,
           uint8_t* chosen, double* weights) const {
    const int32_t rows = cache.size();
    uint8_t* const how = chosen + int64_t(head) * rows;
    double* const weight = weights + int64_t(head) * rows;
    const std::span<double> p = estimate(team, cache, queries, head), logits = state.last(size_t(tokens));
    softmax(team, p);
    const double alpha = team.sum(rows, [&](int32_t i) { return how[i] == kRead ? p[size_t(i)] : 0.0; });
    exact_logits(team, cache, queries, head, logits);
    const double top = team.largest(rows, [&](int32_t i) { return logits[size_t(i)]; }).score;
    const double of_set =
        team.sum(rows, [&](int32_t i) { return how[i] == kRead ? std::exp(logits[size_t(i)] - top) : 0.0; });
    team.each(rows, [&](int32_t i) {
      weight[i] = (how[i] == kRead ? alpha : 0) + (1 - alpha) / rows * of_set * finite_exp(top - logits[size_t(i)]);
      if (how[i] == kUnread) how[i] = kEstimated;
    });
  }
};

}  // namespace kvreplay
