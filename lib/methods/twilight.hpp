#pragma once
#include "core/linear.hpp"
#include "methods/quest.hpp"

namespace kvreplay {

// A key in 4 bits per number, with an offset and a step of its own (methods/twilight.hpp).
struct FourBitKey {
  double low, step;

  template <class Real>
  explicit FourBitKey(std::span<const Real> key) : low(double(key[0])) {
    constexpr double kLeastRange = 1e-9;
    double high = low;
    for (const Real number : key) {
      const double x = double(number);
      low = x < low ? x : low, high = x > high ? x : high;
    }
    step = (high - low > kLeastRange ? high - low : kLeastRange) / 15;
  }
  double operator()(double x) const { return std::nearbyint((x - low) / step) * step + low; }
};

// Twilight, Lin et al. 2025: candidates by Quest, then as few of them as hold a share p of the attention.
//  1. Candidates: the tokens of Quest's pages at the budget, which is a conservative one (a quarter of the tokens in
//     the paper).
//  2. Per query head: logits with 4-bit keys, softmax over the candidates.
//  3. Keep the smallest number of largest weights whose sum is at least p.
//  4. Exact attention over them.
struct Twilight : Quest {
  static constexpr MethodInfo info{
      .name = "twilight",
      .title = "Quest's pages, pruned to a share p of the attention",
      .source = "Twilight, Lin et al. 2025, section 4",
      .tier = 3,
      .memory = "the full cache, the extremes of its pages and 4-bit keys; the budget bounds the candidates",
      .deviation =
          "kernels find the weights by bisection, and Quest there rounds B / page up. The default p is ours, within "
          "the published 0.85-0.95. With gqa.level kv the group shares its pages, and each query head prunes them.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .implied_layout = true,
      .reads_full_cache = true,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{"read_prompt append choose token_score extra_bytes layout traits set_options state"};
  double p = 0.95;
  int32_t dim = 0;

  static void declare(auto& d) {
    d.integer("page", &Twilight::page, {1, kManyTokens}, "tokens per page");
    d.real("p", &Twilight::p, {0, 1}, "share of the candidates' estimated attention that is read, above 0");
    d.layers("dense_layers", &Twilight::dense_layers, "layers that read everything");
  }
  void resolve(const MethodContext& context) {
    Quest::resolve(context);
    dim = context.shape.dim;
    if (!(p > 0)) throw ParameterError("p", "p 0 reads nothing; set a share above 0");
  }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles =
                dense ? 0 : Quest::layout(context).state_doubles + int64_t(tokens) * (3 + context.shape.dim)};
  }
  void traits(Traits& t) const {
    Quest::traits(t);
    t.heads_differ = true;
  }
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    Quest::extra_bytes(c, cache);
    const int64_t bytes = (cache.shape().dim + 1) / 2 + 4;
    if (!dense) c.aux_bytes = cache.size() * bytes, c.aux_bytes_read = 0, c.aux_bytes_per_scan = bytes;
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    Quest::read_prompt(team, prompt, cache);
    for (int32_t i = 0; i < cache.size(); ++i) code(team, cache, i);
  }
  template <class Real>
  void append(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    Quest::append(team, token, cache);
    code(team, cache, cache.size() - 1);
  }
  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen) {
    Quest::choose(team, cache, queries, chosen);
    const int32_t rows = cache.size();
    if (!dense) team.each(rows, [&](int32_t i) { arrays().scores[size_t(i)] = -INFINITY; });
    for (int32_t h = 0; h < queries.heads && !dense; ++h) prune(team, cache, queries, h, chosen + int64_t(h) * rows);
  }
  double token_score(const auto&, int32_t row) const { return dense ? INFINITY : arrays().scores[size_t(row)]; }

 private:
  struct Arrays {
    std::span<double> row, weight, scores;  // [tokens] of a head's candidates, likewise, [tokens] of the group
    std::span<double> keys;                 // [tokens, dim] as their 4 bits read back
  };
  // Between the extremes and the bounds of Quest.
  Arrays arrays() const {
    const int64_t own = int64_t(tokens) * (3 + dim);
    Carver cut{state.data() + int64_t(state.size()) - 2 * int64_t(pages()) - own};
    return {cut(tokens), cut(tokens), cut(tokens), cut(int64_t(tokens) * dim)};
  }
  std::span<double> key(const Arrays& a, int32_t token) const {
    return a.keys.subspan(size_t(token) * size_t(dim), size_t(dim));
  }
  void code(const Team auto& team, const auto& cache, int32_t row) const {
    if (dense) return;
    const auto exact = cache.key(row);
    const FourBitKey read_back(exact);
    const std::span<double> to = key(arrays(), cache.token(row));
    team.each(dim, [&](int32_t c) { to[size_t(c)] = read_back(double(exact[size_t(c)])); });
  }
  // Steps 2 and 3. chosen: the candidates, all read; those that are pruned are scanned alone.
  template <class Real>
  void prune(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, int32_t head,
             uint8_t* chosen) {
    const Arrays a = arrays();
    const int32_t candidates = team.compact(
        cache.size(), [&](int32_t i) { return chosen[i] == kRead; }, [](int32_t i) { return i; },
        [&](int32_t to, int32_t i) { a.row[size_t(to)] = i; });
    team.each(candidates, [&](int32_t j) {
      const int32_t token = cache.token(int32_t(a.row[size_t(j)]));
      a.weight[size_t(j)] = queries.scale * wide_dot(queries(head), key(a, token));
    });
    softmax(team, a.weight.first(size_t(candidates)));
    const double mass = p < 1 ? p : INFINITY;  // p = 1 reads all candidates, whatever the rounding of the sum
    choose_mass(
        team, candidates, mass, [&](int32_t j) { return a.weight[size_t(j)]; },
        [&](int32_t j, bool yes) { chosen[int32_t(a.row[size_t(j)])] = yes ? kRead : kScanned; });
    team.each(candidates, [&](int32_t j) {
      double& sum = a.scores[size_t(a.row[size_t(j)])];
      sum = a.weight[size_t(j)] + (sum > 0 ? sum : 0);
    });
  }
};

}  // namespace kvreplay
