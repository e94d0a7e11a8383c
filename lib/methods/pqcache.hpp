#pragma once
#include <cmath>

#include "core/policy.hpp"
#include "core/product_codes.hpp"
#include "core/vectors.hpp"

namespace kvreplay {

// PQCache, Zhang et al. 2024, sections 3 and 4: product quantisation of the keys decides which tokens are read.
//  1. End of the prompt, in each of `subvectors` parts of the channels: k-means of the keys between sinks and the
//     prompt's end, 2^bits centroids, initialised with keys at equal distances. A key's code is the number of the
//     nearest centroid.
//  2. A token that is no longer recent gets the nearest centroids.
//  3. Step: score = sum over the parts of <q, centroid>; softmax of score / sqrt(d) over the tokens between sinks and
//     recents, sum over the group. Read exactly the top B - sinks - recent, the sinks and the recents.
// A prompt with fewer keys to cluster than centroids is read in full.
struct PqCache {
  static constexpr MethodInfo info{
      .name = "pqcache",
      .title = "tokens by the product-quantised codes of their keys",
      .source = "PQCache, Zhang et al. 2024, sections 3 and 4",
      .tier = 3,
      .memory = "the full cache, a code per token and part, and the centroids; the budget bounds what is read",
      .deviation =
          "k-means is Lloyd's from keys at equal distances; ties go to the lower centroid, and an empty cluster "
          "keeps its centroid (the release: scikit-learn's).",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .implied_layout = true,
      .reads_full_cache = true,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{"read_prompt choose extra_bytes layout needs max_rows_read state"};
  int32_t subvectors = 2, bits = 6, sinks = 32, recent = kDerived, iterations = 25;
  int32_t budget = 0, tokens = 0;
  int32_t coded = 0;        // number of tokens, from the first on, that have codes
  bool learnt = false;      // whether there are centroids
  std::span<double> state;  // [2^bits, dim] centroids, [subvectors, tokens] codes, [2^bits] sizes, [2, tokens] scores

  static void declare(auto& d) {
    d.integer("subvectors", &PqCache::subvectors, {1, 64}, "parts of a key that are coded separately");
    d.integer("bits", &PqCache::bits, {1, 12}, "bits per part of a code");
    d.integer("sinks", &PqCache::sinks, {0, kManyTokens}, "first tokens that are always read");
    d.integer("recent", &PqCache::recent, {1, kManyTokens}, "last tokens that are always read, the newest included",
              "floor(B/2)");
    d.integer("iterations", &PqCache::iterations, {0, 1000}, "rounds of k-means");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens, tokens = context.tokens;
    if (recent == kDerived) recent = budget / 2 > 1 ? budget / 2 : 1;
    if (sinks + recent > budget) throw protection_error(sinks, recent, budget);
    if (context.shape.dim > 0 && context.shape.dim % subvectors != 0)
      throw ParameterError("subvectors", "subvectors " + std::to_string(subvectors) + " do not divide the " +
                                             std::to_string(context.shape.dim) + " numbers of a key into equal parts");
  }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = int64_t(centroids()) * (context.shape.dim + 1) + int64_t(subvectors + 2) * tokens};
  }
  PromptNeeds needs(const MethodContext&) const { return {.whole = true}; }
  int32_t max_rows_read() const { return budget < tokens ? budget : tokens; }
  KVR_FN void extra_bytes(ExtraBytes& c, const auto& cache) const {
    if (!learnt) return;
    c.sketch_floats = int64_t(centroids()) * cache.shape().dim;
    c.aux_bytes = (int64_t(cache.size()) * subvectors * bits + 7) / 8;
  }

  template <class Real>
  KVR_FN void read_prompt(const Team auto& team, const Prompt<Real>&, BasicCache<Real>& cache) {
    const int32_t first = held_sinks(cache, sinks), count = cache.size() - first;
    coded = cache.size();
    learnt = count >= centroids();
    for (int32_t part = 0; part < subvectors && learnt; ++part)
      parts(cache.shape().dim).learn(team, cache, part, first, count, iterations);
  }
  template <class Real>
  KVR_FN void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries,
                     uint8_t* chosen) {
    const int32_t rows = cache.size(), first = held_sinks(cache, sinks), n = rows - first - recent;
    const int32_t count = budget - first - recent;
    if (!learnt || n <= count) return team.each(rows * queries.heads, [&](int32_t i) { chosen[i] = kRead; });
    const ProductCodes keys = parts(queries.dim);
    team.each((rows - coded) * subvectors, [&](int32_t i) {
      const int32_t row = coded + i / subvectors, part = i % subvectors;
      keys.code(part, row) = keys.nearest(cache, part, row);
    });
    coded = rows;
    const std::span<double> together = state.last(2 * size_t(tokens)).first(size_t(n)),
                            own = state.last(size_t(tokens)).first(size_t(n));
    team.each(n, [&](int32_t i) { together[size_t(i)] = 0; });
    for (int32_t h = 0; h < queries.heads; ++h) {
      team.each(
          n, [&](int32_t i) { own[size_t(i)] = keys.product(queries(h), first + i) / std::sqrt(double(queries.dim)); });
      softmax(team, own);
      team.each(n, [&](int32_t i) { together[size_t(i)] += own[size_t(i)]; });
    }
    team.each(rows * queries.heads, [&](int32_t i) { chosen[i] = kRead; });
    choose_top(
        team, n, count, [&](int32_t i) { return together[size_t(i)]; },
        [&](int32_t i, bool yes) {
          for (int32_t h = 0; h < queries.heads; ++h) chosen[int64_t(h) * rows + first + i] = yes ? kRead : kUnread;
        });
  }

 private:
  KVR_FN int32_t centroids() const { return 1 << bits; }
  KVR_FN ProductCodes parts(int32_t dim) const {
    double* const codes = state.data() + int64_t(centroids()) * dim;
    return {state.data(), codes, codes + int64_t(subvectors) * tokens, centroids(), dim, subvectors, tokens};
  }
};

}  // namespace kvreplay
