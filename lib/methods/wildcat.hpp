#pragma once
#include <cmath>
#include <map>
#include <vector>

#include "core/linear.hpp"
#include "core/policy.hpp"

namespace kvreplay {

// WildCat: the middle tokens of the prompt as a Nystroem coreset of r pivots, by randomly pivoted Cholesky.
//  1. Subtract the mean middle key (softmax does not see it).
//  2. H_ij = exp(scale / tau2 <k_i, k_j> - shift).
//  3. r times: draw a pivot with probability proportional to the residual diagonal, and update it.
//  4. W = (H_SS + ridge trace / r I)^-1 H_S,all.
//  5. Store (k_S, W V, W 1): a key, a sum of values and a mass, which may be negative. Sinks, recent and
//  later tokens
//     stay as they are. Output: sum exp(l) (W V) / sum exp(l) (W 1).
struct WildCat {
  static constexpr MethodInfo info{
      .name = "wildcat",
      .title = "randomly pivoted Cholesky coreset",
      .source = "WildCat, its public page; the choices below the page's level are ours",
      .tier = 3,
      .memory = "B prompt tokens and every later one; of the pivots a value sum and a mass",
      .deviation = "known from its public page only. A given r may exceed what the budget leaves.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .any_positions = false,
      .needs_linear_logits = true,
  };
  int32_t r = kDerived, sinks = 4, recent = 32;
  double tau2 = 1, ridge = 1e-6;
  int32_t budget = 0;
  double rate = 1;
  std::span<double> state;  // pivots that were found, then Work
  Draws draws;

  static void declare(auto& d) {
    d.integer("r", &WildCat::r, {1, kManyTokens}, "pivots", "B - sinks - recent");
    d.real("tau2", &WildCat::tau2, {1e-300, 1e300}, "divisor of the logits in the kernel");
    d.real("ridge", &WildCat::ridge, {0, 1e300}, "regularisation, relative to the mean diagonal of H_SS");
    d.integer("sinks", &WildCat::sinks, {0, kManyTokens}, "first prompt tokens that stay");
    d.integer("recent", &WildCat::recent, {0, kManyTokens}, "last prompt tokens that stay");
  }
  void resolve(const Scene& scene) {
    budget = scene.budget;
    rate = scene.scale / tau2;
    if (sinks + recent > budget) throw too_much_protection(sinks, recent, budget);
    const int32_t M = std::max(0, scene.prompt - sinks - recent);
    if (r != kDerived && scene.prompt > budget && r > M)
      throw ParameterError("r", "r " + std::to_string(r) + " exceeds the " + std::to_string(M) +
                                    " prompt tokens between sinks and recent; give at most as many");
    if (r == kDerived) r = budget - sinks - recent;
  }
  static bool random(const WildCat&) { return true; }
  std::vector<DrawArray> draw_arrays(const Scene&) const { return {{"U uniforms", Structure::pivots, 1, r}}; }
  Layout layout(const Scene& scene) const {
    if (scene.prompt <= budget) return {.state_doubles = 1};
    const int64_t M = scene.prompt, d = scene.shape.dim, dv = scene.shape.v_dim;
    return {.state_doubles = 1 + d + M * (d + 1 + r) + r * (r + dv + 2), .weights = true, .own_rows = r};
  }
  void charge(Charge& c, const auto&) const { c.weight_floats = int64_t(state[0]); }
  void report(std::map<std::string, double>& extras, const auto& cache) const {
    int32_t negative = 0;
    for (int32_t i = 0; i < cache.size(); ++i) negative += cache.den(i) < 0 ? 1 : 0;
    extras["negative_masses"] = negative;
    extras["pivots"] = state[0];
  }
  static std::string failure_text(int32_t, int32_t at) {
    return "H_SS is not positive definite at pivot " + std::to_string(at) +
           "; give a larger ridge or fewer pivots";
  }

  template <class Real>
  KVR_FN void evict(const Team auto& team, BasicCache<Real>& cache) {
    const int32_t first = held_sinks(cache, sinks), M = cache.size() - first - recent;
    if (cache.size() <= budget || M <= 0) return;
    const Work w = carve(cache.shape(), M);
    centre(team, cache, first, w);
    const int32_t found = choose_pivots(team, w);
    sum_values(team, cache, first, found, w);
    if (!solve(team, found, w)) return cache.fail(team, 1, found);
    store(team, cache, first, found, w);
  }

 private:
  struct Work {
    int32_t M, d, columns;
    std::span<double> mean, keys, residual, factor, pivots, inner, sums;
    KVR_FN std::span<double> key(int32_t i) const { return keys.subspan(size_t(i) * size_t(d), size_t(d)); }
    KVR_FN int32_t pivot(int32_t a) const { return int32_t(pivots[size_t(a)]); }
    KVR_FN std::span<double> sum(int32_t a) const {
      return sums.subspan(size_t(a) * size_t(columns), size_t(columns));
    }
  };
  KVR_FN Work carve(const HeadShape& s, int32_t M) const {
    Carver cut{state.data() + 1};
    const int64_t d = s.dim, dv = s.v_dim;
    return {M,
            s.dim,
            s.v_dim + 1,
            cut(d),
            cut(M * d),
            cut(M),
            cut(int64_t(M) * r),
            cut(r),
            cut(int64_t(r) * r),
            cut(r * (dv + 1))};
  }
  // H_ij with shift = the largest ||k||^2, which no inner product exceeds.
  KVR_FN double kernel(const Work& w, int32_t i, int32_t j, double shift) const {
    return std::exp(rate * (wide_dot(w.key(i), w.key(j)) - shift));
  }
  KVR_FN double largest_norm(const Team auto& team, const Work& w) const {
    return team.largest(w.M, [&](int32_t i) { return wide_dot(w.key(i), w.key(i)); }).score;
  }
  KVR_FN void centre(const Team auto& team, const auto& cache, int32_t first, const Work& w) const {
    weighted_sum(
        team, w.M, [&](int32_t) { return 1.0 / w.M; }, [&](int32_t i) { return cache.key(first + i); },
        w.mean);
    team.each(w.M, [&](int32_t i) {
      const auto key = cache.key(first + i), centred = w.key(i);
      for (size_t c = 0; c < w.mean.size(); ++c) centred[c] = double(key[c]) - w.mean[c];
    });
  }
  // Step 3. Fewer than r where nothing is left to draw.
  KVR_FN int32_t choose_pivots(const Team auto& team, const Work& w) const {
    const double shift = largest_norm(team, w);
    const auto row = [&](int32_t i) { return w.factor.data() + int64_t(i) * r; };
    team.each(w.M, [&](int32_t i) { w.residual[size_t(i)] = kernel(w, i, i, shift); });
    for (int32_t j = 0; j < r; ++j) {
      const double total = team.sum(w.M, [&](int32_t i) { return w.residual[size_t(i)]; });
      if (!(total > 0)) return j;
      const int32_t s = draw(w, total * draws.uniform(Structure::pivots, j));
      const double root = std::sqrt(w.residual[size_t(s)]);
      team.sync();
      if (team.rank() == 0) w.pivots[size_t(j)] = s;
      team.each(w.M, [&](int32_t i) {
        const double x = (kernel(w, i, s, shift) - dot(row(i), row(s), j)) / root;
        const double left = w.residual[size_t(i)] - x * x;
        row(i)[j] = x;
        w.residual[size_t(i)] = i == s || left < 0 ? 0 : left;
      });
    }
    return r;
  }
  // The first token at which the running sum of the residual exceeds u.
  KVR_FN static int32_t draw(const Work& w, double u) {
    double running = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < w.M; ++i) {
      const double x = w.residual[size_t(i)];
      if (x > 0) last = i;
      running += x;
      if (running > u) break;
    }
    return last;
  }
  // H_S,all [V 1], before the inverse.
  KVR_FN void sum_values(const Team auto& team, const auto& cache, int32_t first, int32_t found,
                         const Work& w) const {
    const double shift = largest_norm(team, w);
    team.each(found, [&](int32_t a) {
      const auto sum = w.sum(a);
      for (double& x : sum) x = 0;
      for (int32_t i = 0; i < w.M; ++i) {
        const double h = kernel(w, i, w.pivot(a), shift);
        const auto value = cache.value(first + i);
        for (size_t c = 0; c < value.size(); ++c) sum[c] += h * double(value[c]);
        sum[value.size()] += h;
      }
    });
  }
  // Step 4.
  KVR_FN bool solve(const Team auto& team, int32_t found, const Work& w) const {
    const double shift = largest_norm(team, w);
    team.each(found, [&](int32_t a) {
      for (int32_t b = 0; b <= a; ++b)
        w.inner[size_t(a) * size_t(found) + size_t(b)] = kernel(w, w.pivot(a), w.pivot(b), shift);
    });
    complete(team, w.inner, found, ridge);
    if (!cholesky(team, w.inner, found)) return false;
    cholesky_solve(team, w.inner, found, w.sums, w.columns);
    return true;
  }
  // Step 5.
  template <class Real>
  KVR_FN void store(const Team auto& team, BasicCache<Real>& cache, int32_t first, int32_t found,
                    const Work& w) {
    team.each(cache.size(), [&](int32_t i) { cache.mark(i) = i < first || i >= first + w.M ? 1 : 0; });
    for (int32_t a = 0; a < found; ++a) {
      const int32_t row = first + w.pivot(a);
      const auto key = cache.key(row);
      cache.rewrite(
          team, row, [&](int32_t, int32_t c) { return key[size_t(c)]; },
          [&](int32_t, int32_t c) { return Real(w.sum(a)[size_t(c)]); });
      cache.weigh(team, row, 1, w.sum(a)[size_t(w.columns - 1)]);
      if (team.rank() == 0) cache.mark(row) = 1;
    }
    team.sync();
    if (team.rank() == 0) state[0] = found;
    cache.retain(team, [&](int32_t i) { return cache.mark(i) != 0; });
  }
};

}  // namespace kvreplay
