#pragma once
#include "core/linear.hpp"
#include "methods/parts/thinning.hpp"

namespace kvreplay {

// WildCat: represents the middle tokens of the prompt by a Nystroem coreset of r pivots, by randomly pivoted Cholesky.
//  1. Subtract the mean middle key (this does not change a softmax).
//  2. H_ij = exp(scale / tau2 <k_i, k_j> - shift).
//  3. r times: draw a pivot with probability proportional to the residual diagonal, and update it.
//  4. W = (H_SS + ridge trace / r I)^-1 H_S,all.
//  5. Store (k_S, W V, W 1): a key, a sum of values and a mass, which may be negative. Other tokens are unchanged.
//     Output: sum exp(l) (W V) / sum exp(l) (W 1).
struct WildCat : Thinning<4, 32> {
  static constexpr MethodInfo info{
      .name = "wildcat",
      .title = "randomly pivoted Cholesky coreset",
      .source = "WildCat, its public page; details that the page leaves open are our choice",
      .tier = 3,
      .memory = "B prompt tokens and every later one; a value sum and a mass per pivot",
      .deviation = "known from its public page only. An explicit r may exceed the room in the budget.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .any_positions = false,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{"evict extra_bytes report layout traits failure_text rng_arrays state rng"};
  int32_t r = kDerived;
  double tau2 = 1, ridge = 1e-6;
  double rate = 1;
  std::span<double> state;  // number of pivots, then Work
  Rng rng;

  static void declare(auto& d) {
    d.integer("r", &WildCat::r, {1, kManyTokens}, "pivots", "B - sinks - recent");
    d.real("tau2", &WildCat::tau2, {1e-300, 1e300}, "divisor of the logits in the kernel");
    d.real("ridge", &WildCat::ridge, {0, 1e300}, "regularisation, relative to the mean diagonal of H_SS");
    protect<WildCat>(d);
  }
  void resolve(const MethodContext& context) {
    Thinning::resolve(context);
    rate = context.scale / tau2;
    const int32_t M = middle_of(context);
    if (r == kDerived) r = budget - sinks - recent;
    else if (r > M && context.prompt_tokens > budget)
      throw ParameterError("r", "r must be at most the " + std::to_string(M) + " middle tokens of the prompt");
  }
  void traits(Traits& t) const { t.random = true; }
  std::vector<RngArray> rng_arrays(const MethodContext&) const { return {{"U uniforms", RngStream::pivots, 1, r}}; }
  Layout layout(const MethodContext& context) const {
    if (context.prompt_tokens <= budget) return {.state_doubles = 1};
    const int64_t M = context.prompt_tokens, d = context.shape.dim, dv = context.shape.v_dim;
    return {.state_doubles = 1 + d + M * (d + 1 + r) + r * (r + dv + 2), .weights = true, .own_rows = r};
  }
  void extra_bytes(ExtraBytes& c, const auto&) const { c.weight_floats = int64_t(state[0]); }
  void report(auto& extras, const auto& cache) const {
    extras["pivots"] = state[0], extras["negative_masses"] = 0;
    for (int32_t i = 0; i < cache.size(); ++i) extras["negative_masses"] += cache.den(i) < 0 ? 1 : 0;
  }
  static std::string failure_text(int32_t, int32_t pivots) {
    return "H_SS of " + std::to_string(pivots) + " pivots has no inverse; set a larger ridge";
  }

  template <class Real>
  void evict(const Team auto& team, BasicCache<Real>& cache) {
    const auto [first, M] = middle(cache);
    if (cache.size() <= budget || M == 0) return;
    const Work w = centre(team, cache, first, M);
    const int32_t found = pivoted_cholesky(
        team, M, r, [&](int32_t i, int32_t j) { return w.H(i, j); },
        [&](int32_t j) { return rng.uniform(RngStream::pivots, j); }, w.residual, w.factor, w.pivots);
    if (!solve(team, cache, first, found, w)) return cache.fail(1, found);
    store(team, cache, first, found, w);
  }

 private:
  // Data of the middle tokens. shift: the largest ||k||^2, an upper bound of every inner product.
  struct Work {
    int32_t M, d, columns;
    double rate, shift = 0;
    std::span<double> mean = {}, keys = {}, residual = {}, factor = {}, pivots = {}, inner = {}, sums = {};
    std::span<double> key(int32_t i) const { return keys.subspan(size_t(i * d), size_t(d)); }
    double* sum(int32_t a) const { return sums.data() + int64_t(a) * columns; }
    int32_t pivot(int32_t a) const { return int32_t(pivots[size_t(a)]); }
    double H(int32_t i, int32_t j) const { return std::exp(rate * (wide_dot(key(i), key(j)) - shift)); }
  };
  // Step 1.
  Work centre(const Team auto& team, const auto& cache, int32_t first, int32_t M) const {
    Carver cut{state.data() + 1};
    Work w{M, cache.shape().dim, cache.shape().v_dim + 1, rate};
    const int64_t n = M, pivots = r;
    w.mean = cut(w.d), w.keys = cut(n * w.d), w.residual = cut(n), w.factor = cut(n * pivots);
    w.pivots = cut(pivots), w.inner = cut(pivots * pivots), w.sums = cut(pivots * w.columns);
    const auto key = [&](int32_t i) { return cache.key(first + i); };
    const auto share = [&](int32_t) { return 1.0 / M; };
    weighted_sum(M, share, key, w.mean);
    team.each(M, [&](int32_t i) {
      for (size_t c = 0; c < w.mean.size(); ++c) w.key(i)[c] = double(key(i)[c]) - w.mean[c];
    });
    w.shift = team.largest(M, [&](int32_t i) { return wide_dot(w.key(i), w.key(i)); }).score;
    return w;
  }
  // Step 4: sum(a) = row a of W [V 1]. Returns false if H_SS has no inverse.
  bool solve(const Team auto& team, const auto& cache, int32_t first, int32_t found, const Work& w) const {
    team.each(found, [&](int32_t a) {
      double* const sum = w.sum(a);
      for (int32_t c = 0; c < w.columns; ++c) sum[c] = 0;
      for (int32_t i = 0; i < w.M; ++i) {
        const double h = w.H(i, w.pivot(a));
        const auto value = cache.value(first + i);
        for (size_t c = 0; c < value.size(); ++c) sum[c] += h * double(value[c]);
        sum[value.size()] += h;
      }
      for (int32_t b = 0; b <= a; ++b) w.inner[size_t(a * found + b)] = w.H(w.pivot(a), w.pivot(b));
    });
    complete(team, w.inner, found, ridge);
    if (!cholesky(team, w.inner, found)) return false;
    cholesky_solve(team, w.inner, found, w.sums, w.columns);
    return true;
  }
  // Step 5.
  template <class Real>
  void store(const Team auto& team, BasicCache<Real>& cache, int32_t first, int32_t found, const Work& w) {
    team.each(cache.size(), [&](int32_t i) { cache.mark(i) = i < first || i >= first + w.M ? 1 : 0; });
    for (int32_t a = 0; a < found; ++a) {
      const int32_t row = first + w.pivot(a);
      const auto key = cache.key(row);
      cache.rewrite(
          team, row, [&](int32_t, int32_t c) { return key[size_t(c)]; },
          [&](int32_t, int32_t c) { return Real(w.sum(a)[c]); });
      cache.weigh(row, 1, w.sum(a)[w.columns - 1]);
      cache.mark(row) = 1, state[0] = found;
    }
    cache.retain(team, [&](int32_t i) { return cache.mark(i) != 0; });
  }
};

}  // namespace kvreplay
