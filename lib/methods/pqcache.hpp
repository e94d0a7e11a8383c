#pragma once
#include <cmath>
#include <cstdint>

#include "core/policy.hpp"
#include "core/team.hpp"
#include "core/vectors.hpp"

namespace kvreplay {

// Product quantisation of keys: the nearest centroid in each part of the channels (methods/pqcache.hpp).
struct ProductCodes {
  double* centroids;  // [count, dim]
  double* codes;      // [parts, tokens]
  double* sizes;      // [count] scratch
  int32_t count, dim, parts, tokens;
  int32_t oldest;  // token of row 0, as a layer's window may have evicted earlier ones

  int32_t width() const { return dim / parts; }
  double* centroid(int32_t part, int32_t which) const {
    return centroids + int64_t(which) * dim + int64_t(part) * width();
  }
  double& code(int32_t part, int32_t row) const { return codes[int64_t(part) * tokens + oldest + row]; }

  int32_t nearest(const auto& cache, int32_t part, int32_t row) const {
    const auto key = cache.key(row);
    int32_t best = 0;
    double least = INFINITY;
    for (int32_t c = 0; c < count; ++c) {
      const double* const at = centroid(part, c);
      double square = 0;
      for (int32_t i = 0; i < width(); ++i) {
        const double x = double(key[size_t(part * width() + i)]) - at[i];
        square += x * x;
      }
      if (square < least) least = square, best = c;
    }
    return best;
  }
  // Lloyd's k-means over rows first .. first + n - 1, starting from keys at equal distances; an empty cluster keeps its
  // centroid.
  void learn(const Team auto& team, const auto& cache, int32_t part, int32_t first, int32_t n, int32_t rounds) const {
    const auto channel = [&](int32_t row, int32_t i) {
      return double(cache.key(first + row)[size_t(part * width() + i)]);
    };
    const auto assign = [&] {
      team.each(n, [&](int32_t i) { code(part, first + i) = nearest(cache, part, first + i); });
    };
    team.each(count * width(), [&](int32_t i) {
      const int32_t c = i / width();
      centroid(part, c)[i % width()] = channel(int32_t(int64_t(c) * n / count), i % width());
    });
    for (int32_t round = 0; round < rounds; ++round) {
      assign();
      team.each(count, [&](int32_t c) {
        sizes[c] = 0;
        for (int32_t i = 0; i < n; ++i) sizes[c] += code(part, first + i) == c ? 1 : 0;
      });
      team.each(count * width(), [&](int32_t i) {
        const int32_t c = i / width();
        if (sizes[c] == 0) return;
        double sum = 0;
        for (int32_t j = 0; j < n; ++j)
          if (code(part, first + j) == c) sum += channel(j, i % width());
        centroid(part, c)[i % width()] = sum / sizes[c];
      });
    }
    assign();
  }
  // Inner product of a query and the centroids that represent a row's key.
  double product(auto query, int32_t row) const {
    double s = 0;
    for (int32_t part = 0; part < parts; ++part) {
      const double* const at = centroid(part, int32_t(code(part, row)));
      for (int32_t i = 0; i < width(); ++i) s += double(query[size_t(part * width() + i)]) * at[i];
    }
    return s;
  }
};

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
  static constexpr Hooks hooks{"read_prompt choose extra_bytes layout needs traits state"};
  int32_t subvectors = 2, bits = 6, sinks = 32, recent = kDerived, iterations = 25;
  int32_t budget = 0, tokens = 0;
  int32_t coded = 0;        // the first token without codes
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
  void traits(Traits& t) const { t.max_rows_read = budget < tokens ? budget : tokens; }
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    if (!learnt) return;
    c.sketch_floats = int64_t(centroids()) * cache.shape().dim;
    c.aux_bytes = (int64_t(cache.size()) * subvectors * bits + 7) / 8;
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>&, BasicCache<Real>& cache) {
    const int32_t first = held_sinks(cache, sinks), count = cache.size() - first;
    coded = cache.token(0) + cache.size();
    learnt = count >= centroids();
    for (int32_t part = 0; part < subvectors && learnt; ++part)
      parts(cache.shape().dim, cache.token(0)).learn(team, cache, part, first, count, iterations);
  }
  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen) {
    const int32_t rows = cache.size(), first = held_sinks(cache, sinks), n = rows - first - recent;
    const int32_t count = budget - first - recent;
    if (!learnt || n <= count) return team.each(rows * queries.heads, [&](int32_t i) { chosen[i] = kRead; });
    const int32_t oldest = cache.token(0), uncoded = coded > oldest ? coded - oldest : 0;
    const ProductCodes keys = parts(queries.dim, oldest);
    team.each((rows - uncoded) * subvectors, [&](int32_t i) {
      const int32_t row = uncoded + i / subvectors, part = i % subvectors;
      keys.code(part, row) = keys.nearest(cache, part, row);
    });
    coded = oldest + rows;
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
  int32_t centroids() const { return 1 << bits; }
  ProductCodes parts(int32_t dim, int32_t oldest) const {
    double* const codes = state.data() + int64_t(centroids()) * dim;
    return {state.data(), codes, codes + int64_t(subvectors) * tokens, centroids(), dim, subvectors, tokens, oldest};
  }
};

}  // namespace kvreplay
