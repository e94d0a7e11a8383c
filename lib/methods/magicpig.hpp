#pragma once
#include <cmath>
#include <cstdint>

#include "core/platform.hpp"
#include "core/policy.hpp"
#include "core/vectors.hpp"
#include "methods/parts/sketch.hpp"

namespace kvreplay {

// Locality-sensitive hashing by signs: K columns of a projection [columns, d] form one table (methods/magicpig.hpp).

// The signs of x(c), c < d, in one table, as a number.
double sign_code(const double* projection, int32_t d, int32_t K, int32_t table, auto x) {
  double bits = 0;
  for (int32_t b = 0; b < K; ++b) {
    const double* const column = projection + (int64_t(table) * K + b) * d;
    double sum = 0;
    KVR_SIMD_SUM(sum) for (int32_t c = 0; c < d; ++c) sum += x(c) * column[c];
    bits = 2 * bits + (sum > 0 ? 1 : 0);
  }
  return bits;
}

// Probability that two vectors at this cosine agree in all K signs of at least `least` of L tables.
inline double agreement_chance(double cosine, int32_t K, int32_t L, int32_t least) {
  const double angle = std::acos(cosine > 1 ? 1 : cosine < -1 ? -1 : cosine);
  const double table = std::pow(1 - angle / 3.14159265358979323846, K);
  // Probability of fewer tables: terms C(L, m) table^m (1 - table)^(L - m).
  double fewer = 0, ways = 1;
  for (int32_t m = 0; m < least; ++m) {
    fewer += ways * std::pow(table, m) * std::pow(1 - table, L - m);
    ways *= double(L - m) / (m + 1);
  }
  return 1 - fewer;
}

// MagicPIG, Chen et al. 2024, section 4: tokens are sampled by locality-sensitive hashing and weighted so that sums are
// nearly unbiased.
//  1. End of the prompt: the middle is every token but the first `sinks` and the last `local`; kbar = its mean key. All
//     keys are replaced by k - kbar, which does not change a softmax.
//  2. L tables of K signs: bit b of table t is set if (k - kbar) Phi_{tK+b} > 0, Phi Gaussian.
//  3. Step, per query head: a token of the middle is sampled iff at least min_tables tables agree with q's in all bits.
//  4. With p = 1 - angle(q, k - kbar) / pi this has probability u, of at least min_tables successes in L trials of p^K.
//  5. Sampled tokens have weight 1 / (u + 1e-4) in both sums; sinks, local and later tokens have weight 1.
struct MagicPig {
  static constexpr MethodInfo info{
      .name = "magicpig",
      .title = "tokens sampled by hashing, weighted by their probability",
      .source = "MagicPIG, Chen et al. 2024, section 4",
      .tier = 3,
      .memory = "the full cache, 2 bytes per table and a norm per token of the middle; the rows read are an output",
      .deviation = "one projection for each kv head and layer; the release uses one for all layers.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .takes_budget = false,
      .implied_layout = true,
      .reads_full_cache = true,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{
      "read_prompt choose extra_bytes report layout needs traits rng_arrays set_options state rng"};
  static constexpr double kLeast = 1e-4;  // added to every probability
  static constexpr int32_t kMostBits = 24;
  int32_t K = 10, L = 150, sinks = 4, local = 64, min_tables = 2;
  LayerSet dense_layers{{1 | uint64_t{1} << 16 | uint64_t{1} << 32 | uint64_t{1} << 48, 1}};
  int32_t prompt = 0, first = 0, middle = 0;  // prompt length; first token and number of tokens that are hashed
  bool dense = false;
  std::span<double> state;  // [dim] kbar, [K L, dim] Phi, [P, L] codes of the middle, [P] norms, [L] codes of a query
  Rng rng;

  static void declare(auto& d) {
    d.integer("K", &MagicPig::K, {1, kMostBits}, "signs per table");
    d.integer("L", &MagicPig::L, {1, 1 << 14}, "tables");
    d.integer("sinks", &MagicPig::sinks, {0, kManyTokens}, "first tokens that are always read");
    d.integer("local", &MagicPig::local, {0, kManyTokens}, "last tokens of the prompt that are always read");
    d.integer("min_tables", &MagicPig::min_tables, {1, 1 << 14}, "tables that must agree");
    d.layers("dense_layers", &MagicPig::dense_layers, "layers that read everything");
  }
  void resolve(const MethodContext& context) {
    prompt = context.prompt_tokens;
    dense = dense_layers.has(context.layer);
    if (min_tables > L)
      throw ParameterError("min_tables", "min_tables " + std::to_string(min_tables) + " of L " + std::to_string(L) +
                                             " tables cannot agree; lower min_tables or raise L");
  }
  void traits(Traits& t) const { t.random = true; }
  static void set_options(const MagicPig&, CommonOptions& options) { options.gqa_level = GqaLevel::query; }
  std::vector<RngArray> rng_arrays(const MethodContext& context) const {
    return {{"U uniforms", RngStream::sketch_matrix, 1, (int64_t(context.shape.dim) * K * L + 1) / 2 * 2}};
  }
  Layout layout(const MethodContext& context) const {
    if (dense) return {};
    const int64_t d = context.shape.dim;
    return {.state_doubles = d + d * K * L + int64_t(prompt) * (L + 1) + L};
  }
  PromptNeeds needs(const MethodContext&) const { return {.whole = !dense}; }
  // A step looks up one bucket per table.
  void extra_bytes(ExtraBytes& c, const auto&) const {
    c.aux_bytes = int64_t(2) * L * middle, c.aux_bytes_read = int64_t(2) * (middle > 0 ? L : 0);
    c.sketch_floats = middle;
  }
  void report(auto& extras, const auto&) const { extras["middle_tokens"] = middle; }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& p, BasicCache<Real>& cache) {
    const int32_t d = p.shape().dim, columns = K * L;
    const int32_t row = held_sinks(cache, sinks);
    middle = cache.size() - row > local ? cache.size() - row - local : 0;
    if (dense || middle == 0) return middle = 0, void();
    first = cache.token(row);
    weighted_sum(
        middle, [](int32_t) { return 1.0; }, [&](int32_t i) { return cache.key(row + i); }, centre(d));
    for (double& coordinate : centre(d)) coordinate /= middle;
    const std::span<double> phi = projection(d);
    team.each(d * columns, [&](int32_t i) {  // drawn row by row of [dim, K L], stored column by column
      phi[size_t(int64_t(i % columns) * d + i / columns)] = gaussian(rng, RngStream::sketch_matrix, i);
    });
    const auto centred = [&](int32_t i, int32_t c) {
      return double(cache.key(row + i)[size_t(c)]) - centre(d)[size_t(c)];
    };
    team.each(middle * L, [&](int32_t i) {
      codes(d)[size_t(i)] = sign_code(phi.data(), d, K, i % L, [&](int32_t c) { return centred(i / L, c); });
    });
    team.each(middle, [&](int32_t i) {
      double square = 0;
      for (int32_t c = 0; c < d; ++c) square += centred(i, c) * centred(i, c);
      norms(d)[size_t(i)] = std::sqrt(square);
    });
  }
  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen,
              double* weights) {
    const int32_t rows = cache.size(), d = queries.dim;
    team.each(rows * queries.heads, [&](int32_t i) { chosen[i] = kRead, weights[i] = 1; });
    const int32_t oldest = cache.token(0), gone = oldest > first ? oldest - first : 0;  // a window evicts tokens
    for (int32_t h = 0; h < queries.heads && middle > gone; ++h) {
      const auto q = queries(h);
      const std::span<double> own = state.last(size_t(L));
      team.each(L, [&](int32_t t) {
        own[size_t(t)] = sign_code(projection(d).data(), d, K, t, [&](int32_t c) { return double(q[size_t(c)]); });
      });
      const double length = norm(q);
      team.each(middle - gone, [&](int32_t held) {
        const int32_t i = gone + held;
        const int64_t at = int64_t(h) * rows + first + i - oldest;
        const double* const stored = &codes(d)[size_t(i) * size_t(L)];
        int32_t agree = 0;
        for (int32_t t = 0; t < L; ++t) agree += stored[t] == own[size_t(t)] ? 1 : 0;
        chosen[at] = agree >= min_tables ? kRead : kUnread;
        if (chosen[at] == kRead) weights[at] = 1 / (chance(cache, i, q, length) + kLeast);
      });
    }
  }

 private:
  std::span<double> centre(int32_t d) const { return state.first(size_t(d)); }
  std::span<double> projection(int32_t d) const { return state.subspan(size_t(d), size_t(d) * size_t(K * L)); }
  std::span<double> codes(int32_t d) const {
    return state.subspan(size_t(d) * size_t(K * L + 1), size_t(prompt) * size_t(L));
  }
  std::span<double> norms(int32_t d) const {
    return state.subspan(size_t(d) * size_t(K * L + 1) + size_t(prompt) * size_t(L), size_t(prompt));
  }
  // Probability that a token of the middle is sampled.
  template <class Real>
  double chance(const BasicCache<Real>& cache, int32_t i, std::span<const Real> q, double length) const {
    const int32_t d = int32_t(q.size());
    const auto key = cache.key(first + i - cache.token(0));
    double product = 0;
    for (int32_t c = 0; c < d; ++c) product += double(q[size_t(c)]) * (double(key[size_t(c)]) - centre(d)[size_t(c)]);
    const double lengths = length * norms(d)[size_t(i)], cosine = lengths > 0 ? product / lengths : 0;
    return agreement_chance(cosine, K, L, min_tables);
  }
};

}  // namespace kvreplay
