#pragma once
#include <cmath>

#include "core/linear.hpp"
#include "core/policy.hpp"
#include "methods/parts/sketch.hpp"

namespace kvreplay {

// SOCKET, arXiv 2602.06283: soft collisions of hash tables, times the norm of the value.
//  1. L tables of K Gaussian planes. A key has K bits in each table: bit = <plane, k> >= 0.
//  2. Query, per plane: z = tanh(<plane, q>) / sqrt(d).
//  3. Weight of a token = sum over tables of the product over bits of 1 / (1 + exp(-2 z c / tau)), c = 1 for a set bit
//     and -1 for another: the softmax over the 2^K corners of a table of <z, c> / tau, at the corner of the key.
//  4. Score = weight ||v||. Read the sinks, the recents, and the best of the other tokens up to the budget.
struct Socket {
  static constexpr MethodInfo info{
      .name = "socket",
      .title = "tokens by soft collisions of their hash codes",
      .source = "SOCKET, arXiv 2602.06283; skylight-org/sparse-attention-hub",
      .tier = 3,
      .memory = "the full cache, K L bits and a norm per token; the budget bounds what is read",
      .deviation =
          "the release takes its top from all tokens, those that are always read included, and so reads fewer. The "
          "defaults are those of its benchmark.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .only_level = GqaLevel::query,
      .implied_layout = true,
      .reads_full_cache = true,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{
      "read_prompt append choose token_score extra_bytes layout traits rng_arrays set_options state rng"};
  static constexpr int32_t kMostBits = 15;
  using Code = uint16_t;
  int32_t K = 11, L = 55, sinks = 128, recent = 128;
  double tau = 0.5;
  LayerSet dense_layers;
  int32_t budget = 0, tokens = 0;
  bool dense = false, drawn = false;
  int32_t ranked = 0;       // rows behind the sinks that the last step ranked
  std::span<double> state;  // see Arrays
  Rng rng;

  static void declare(auto& d) {
    d.integer("K", &Socket::K, {1, kMostBits}, "planes per table");
    d.integer("L", &Socket::L, {1, 1 << 14}, "tables");
    d.real("tau", &Socket::tau, {0, 1e300}, "temperature of a table's softmax, above 0");
    d.integer("sinks", &Socket::sinks, {0, kManyTokens}, "first tokens that are always read");
    d.integer("recent", &Socket::recent, {1, kManyTokens}, "last tokens that are always read, the newest included");
    d.layers("dense_layers", &Socket::dense_layers, "layers that read everything");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens, tokens = context.tokens;
    dense = dense_layers.has(context.layer);
    if (!(tau > 0)) throw ParameterError("tau", "tau 0 divides by zero; set a temperature above 0");
    if (sinks + recent > budget) throw protection_error(sinks, recent, budget);
  }
  void traits(Traits& t) const {
    t.random = true;
    t.max_rows_read = dense || budget > tokens ? tokens : budget;
  }
  static void set_options(const Socket&, CommonOptions& options) { options.gqa_level = GqaLevel::query; }
  std::vector<RngArray> rng_arrays(const MethodContext& context) const {
    return {{"U uniforms", RngStream::hash_planes, 1, (int64_t(context.shape.dim) * K * L + 1) / 2 * 2}};
  }
  Layout layout(const MethodContext& context) const {
    if (dense) return {};
    const int64_t planes = int64_t(context.shape.dim) * K * L, codes = int64_t(L) * tokens;
    return {.state_doubles = planes + codes + 2 * int64_t(tokens) + (int64_t(1) << K)};
  }
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    if (!dense) c.aux_bytes = int64_t(cache.size()) * ((K * L + 7) / 8), c.sketch_floats = cache.size();
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>&, BasicCache<Real>& cache) {
    for (int32_t i = 0; i < cache.size(); ++i) hash(team, cache, i);
  }
  template <class Real>
  void append(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    cache.push(token);
    hash(team, cache, cache.size() - 1);
  }
  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen) {
    const int32_t rows = cache.size(), first = held_sinks(cache, sinks), n = rows - first - recent;
    const int32_t count = budget - first - recent;
    team.each(rows * queries.heads, [&](int32_t i) { chosen[i] = kRead; });
    ranked = dense || n < 0 ? 0 : n;
    if (ranked == 0) return;
    const Arrays a = arrays(queries.dim);
    for (int32_t h = 0; h < queries.heads; ++h) {
      team.each(n, [&](int32_t i) { a.scores[size_t(i)] = 0; });
      for (int32_t table = 0; table < L; ++table) {
        weigh_corners(a, queries(h), table);
        const Code* const code = a.code(table, cache.token(first));
        team.each(n, [&](int32_t i) { a.scores[size_t(i)] += a.corners[code[i]]; });
      }
      const double* const norms = &a.norms[size_t(cache.token(first))];
      team.each(n, [&](int32_t i) { a.scores[size_t(i)] *= norms[i]; });
      choose_top(
          team, n, count, [&](int32_t i) { return a.scores[size_t(i)]; },
          [&](int32_t i, bool yes) { chosen[int64_t(h) * rows + first + i] = yes ? kRead : kUnread; });
    }
  }
  double token_score(const auto& cache, int32_t row) const {
    const int32_t i = row - held_sinks(cache, sinks);
    return i < 0 || i >= ranked ? INFINITY : arrays(cache.shape().dim).scores[size_t(i)];
  }

 private:
  struct Arrays {
    std::span<double> planes;   // [L K, dim]
    std::span<Code> codes;      // [L, tokens]
    std::span<double> norms;    // [tokens] of the values
    std::span<double> scores;   // [tokens]
    std::span<double> corners;  // [2^K] softmax of a table
    int32_t tokens;
    Code* code(int32_t table, int32_t token) const { return &codes[size_t(table) * size_t(tokens) + size_t(token)]; }
  };
  Arrays arrays(int32_t dim) const {
    Carver cut{state.data()};
    const int64_t codes = int64_t(L) * tokens;
    const std::span<double> planes = cut(int64_t(dim) * K * L);
    const std::span<Code> packed = cut.numbers<Code>(codes);
    const std::span<double> norms = cut(tokens), scores = cut(tokens), corners = cut(int64_t(1) << K);
    return {planes, packed, norms, scores, corners, tokens};
  }
  std::span<const double> plane(const Arrays& a, int32_t table, int32_t bit, size_t dim) const {
    return std::span<const double>(a.planes).subspan(size_t(table * K + bit) * dim, dim);
  }
  // Drawn row by row of [dim, L K], stored plane by plane.
  void draw(const Team auto& team, const Arrays& a, int32_t dim) {
    const int32_t planes = K * L;
    team.each(dim * planes, [&](int32_t i) {
      a.planes[size_t(i % planes) * size_t(dim) + size_t(i / planes)] = gaussian(rng, RngStream::hash_planes, i);
    });
    drawn = true;
  }
  // Step 1 for one row, and the norm of its value.
  void hash(const Team auto& team, const auto& cache, int32_t row) {
    if (dense) return;
    const Arrays a = arrays(cache.shape().dim);
    if (!drawn) draw(team, a, cache.shape().dim);
    const auto key = cache.key(row);
    team.each(L, [&](int32_t table) {
      int32_t code = 0;
      for (int32_t bit = 0; bit < K; ++bit)
        code = 2 * code + (wide_dot(plane(a, table, bit, key.size()), key) >= 0 ? 1 : 0);
      *a.code(table, cache.token(row)) = Code(code);
    });
    a.norms[size_t(cache.token(row))] = norm(cache.value(row));
  }
  // Steps 2 and 3: the weight of each corner of a table. Doubles the corners bit by bit.
  template <class Real>
  void weigh_corners(const Arrays& a, std::span<const Real> query, int32_t table) const {
    a.corners[0] = 1;
    for (int32_t bit = 0; bit < K; ++bit) {
      const double z = std::tanh(wide_dot(plane(a, table, bit, query.size()), query)) / std::sqrt(double(query.size()));
      const double set = 1 / (1 + std::exp(-2 * z / tau)), clear = 1 / (1 + std::exp(2 * z / tau));
      for (int32_t c = (1 << bit) - 1; c >= 0; --c) {
        const double before = a.corners[size_t(c)];
        a.corners[size_t(2 * c + 1)] = before * set, a.corners[size_t(2 * c)] = before * clear;
      }
    }
  }
};

}  // namespace kvreplay
