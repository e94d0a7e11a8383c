#pragma once
#include <cmath>

#include "core/linear.hpp"
#include "methods/parts/read_sets.hpp"

namespace kvreplay {

// SparQ, Ribar et al. 2024, section 4 and Algorithm 1: a query's largest channels decide which tokens are read, and the
// mean value stands for the others.
//  1. The r channels with the largest sum over the group of |q_c|.
//  2. Per head s_j = scale sqrt(||q||_1 / ||q_r||_1) sum over these channels of q_c k_jc.
//  3. S = the newest `recent` tokens, and the top B - recent of the others by the group's sum of s_j.
//  4. alpha = sum over S of softmax(s). Output = alpha (exact attention over S) + (1 - alpha) (mean of all values).
// The output is that of weights alpha + (1 - alpha) Z_S / (n e_j) on the tokens of S, where e_j = exp(l_j) and Z_S is
// their sum over S, and of logits ln((1 - alpha) Z_S / n) on the others: a sink logit then takes the same share as in
// attention over S.
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
  static constexpr Hooks hooks{"choose token_score extra_bytes layout traits state"};
  static constexpr int32_t kChannels = 16;  // default of `r`, where a key has as many channels
  int32_t r = kDerived, recent = kDerived;
  bool reallocate = true;
  LayerSet dense_layers{};
  int32_t budget = 0, tokens = 0, dim = 0;
  bool dense = false;
  std::span<double> state;  // Work

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
    dim = context.shape.dim;
    if (r == kDerived) r = dim < kChannels && dim > 0 ? dim : kChannels;
    if (dim > 0 && r > dim)
      throw ParameterError("r", "r " + std::to_string(r) + " exceeds the " + std::to_string(dim) +
                                    " channels of a key; take fewer channels");
  }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = dense ? 0 : dim + r + int64_t(tokens) + int64_t(context.shape.heads) * (tokens + r)};
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
    if (dense) return reads.put_run(team, 0, reads.rows, kRead);
    const Work w = work(queries.heads);
    choose_channels(team, queries, w);
    estimate(team, cache, queries, w);
    const int32_t others = reads.rows > recent ? reads.rows - recent : 0;
    team.each(others, [&](int32_t i) {
      double sum = 0;
      for (int32_t h = 0; h < queries.heads; ++h) sum += w.of_head(h)[size_t(i)];
      w.together[size_t(i)] = sum;
    });
    reads.put_run(team, others, reads.rows - others, kRead);
    choose_top(
        team, others, budget - recent, [&](int32_t i) { return w.together[size_t(i)]; },
        [&](int32_t i, bool yes) { reads.put(i, yes ? kRead : kUnread); });
    if (!reallocate || reads.rows <= budget) return;
    for (int32_t h = 0; h < queries.heads; ++h) mix(team, cache, queries, h, w, chosen, weights);
  }
  double token_score(const auto& cache, int32_t row) const {
    return !dense && row < cache.size() - recent ? work(0).together[size_t(row)] : INFINITY;
  }

 private:
  struct Work {
    std::span<double> together;              // [tokens] scores of the group
    std::span<int32_t> channels, is_chosen;  // [r], [dim]
    std::span<double> scores, queries;       // [heads, tokens], [heads, r] at the channels
    std::span<double> query(int32_t head) const {
      return queries.subspan(size_t(head) * channels.size(), channels.size());
    }
    std::span<double> of_head(int32_t head) const {
      const size_t n = together.size();
      return scores.subspan(size_t(head) * n, n);
    }
  };
  Work work(int32_t heads) const {
    Carver cut{state.data()};
    const std::span<double> together = cut(tokens);
    const std::span<int32_t> channels = cut.numbers<int32_t>(r), is_chosen = cut.numbers<int32_t>(dim);
    return {together, channels, is_chosen, cut(int64_t(heads) * tokens), cut(int64_t(heads) * r)};
  }
  // Step 1.
  template <class Real>
  void choose_channels(const Team auto& team, const StepQueries<Real>& queries, const Work& w) const {
    choose_top(
        team, queries.dim, r,
        [&](int32_t c) {
          double sum = 0;
          for (int32_t h = 0; h < queries.heads; ++h) sum += std::abs(double(queries(h)[size_t(c)]));
          return sum;
        },
        [&](int32_t c, bool yes) { w.is_chosen[size_t(c)] = yes ? 1 : 0; });
    team.compact(
        queries.dim, [&](int32_t c) { return w.is_chosen[size_t(c)] != 0; }, [](int32_t c) { return c; },
        [&](int32_t to, int32_t c) { w.channels[size_t(to)] = c; });
  }
  // Step 2: the logits s of all heads, one per row.
  template <class Real>
  void estimate(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries,
                const Work& w) const {
    for (int32_t h = 0; h < queries.heads; ++h) {
      const auto q = queries(h);
      double all = 0, counted = 0;
      for (int32_t c = 0; c < queries.dim; ++c) all += std::abs(double(q[size_t(c)]));
      for (const int32_t c : w.channels) counted += std::abs(double(q[size_t(c)]));
      const double factor = queries.scale * (counted > 0 ? std::sqrt(all / counted) : 1);
      for (int32_t j = 0; j < r; ++j) w.query(h)[size_t(j)] = factor * double(q[size_t(w.channels[size_t(j)])]);
      team.each(cache.size(), [&](int32_t i) { w.of_head(h)[size_t(i)] = 0; });
    }
    constexpr int32_t kAtOnce = 32;  // rows
    wide([&] {
      for (int32_t first = 0; first < cache.size(); first += kAtOnce) {
        const int32_t count = cache.size() - first < kAtOnce ? cache.size() - first : kAtOnce;
        for (int32_t j = 0; j < r; ++j) {
          double numbers[kAtOnce];
          for (int32_t i = 0; i < count; ++i) numbers[i] = double(cache.key(first + i)[size_t(w.channels[size_t(j)])]);
          for (int32_t h = 0; h < queries.heads; ++h) {
            double* const s = &w.of_head(h)[size_t(first)];
            const double q = w.query(h)[size_t(j)];
            KVR_SIMD for (int32_t i = 0; i < count; ++i) s[i] += q * numbers[i];
          }
        }
      }
    });
  }
  // Sum of the softmax of s over the rows that are read.
  static double share_of_read(const Team auto& team, std::span<const double> s, auto is_read) {
    constexpr int32_t kAtOnce = 16;
    const int32_t n = int32_t(s.size());
    const double top = team.largest(n, [&](int32_t i) { return s[size_t(i)]; }).score;
    double all = 0, read = 0;
    wide([&] {
      for (int32_t first = 0; first < n; first += kAtOnce) {
        double e[kAtOnce] = {};
        for (int32_t i = 0; i < kAtOnce; ++i) e[i] = first + i < n ? s[size_t(first + i)] - top : -INFINITY;
        exponentiate(e);
        for (int32_t i = 0; i < kAtOnce && first + i < n; ++i) all += e[i], read += is_read(first + i) ? e[i] : 0;
      }
    });
    return read / all;
  }
  // Step 4: weights of the rows that a head reads, and the logit of all others.
  template <class Real>
  void mix(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, int32_t head,
           const Work& w, uint8_t* chosen, double* weights) const {
    const int32_t rows = cache.size();
    uint8_t* const how = chosen + int64_t(head) * rows;
    double* const weight = weights + int64_t(head) * rows;
    const auto is_read = [&](int32_t i) { return how[i] == kRead; };
    const std::span<double> logits = w.of_head(head).first(size_t(rows));
    const double alpha = share_of_read(team, logits, is_read);
    // The estimates are used up: exact logits of the rows that are read take their place.
    team.each(rows, [&](int32_t i) {
      logits[size_t(i)] = is_read(i) ? queries.scale * wide_dot(queries(head), cache.key(i)) : -INFINITY;
    });
    const double top = team.largest(rows, [&](int32_t i) { return logits[size_t(i)]; }).score;
    const double of_set = team.sum(rows, [&](int32_t i) { return is_read(i) ? std::exp(logits[size_t(i)] - top) : 0; });
    const double share = (1 - alpha) / rows * of_set;  // each row gets, relative to exp(top)
    const double of_others = top + std::log(share);
    team.each(rows, [&](int32_t i) {
      weight[i] = is_read(i) ? alpha + share * finite_exp(top - logits[size_t(i)]) : of_others;
      if (how[i] == kUnread) how[i] = kEstimated;
    });
  }
};

}  // namespace kvreplay
