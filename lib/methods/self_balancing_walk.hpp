#pragma once
#include "methods/parts/thinning.hpp"
#include "methods/parts/walk.hpp"
#include "theory/walk.hpp"

namespace kvreplay {

// Self-Balancing Walk (BalanceKV, Han et al. 2025, Algorithm 2 and SoftmaxBalance; after Alweiss, Liu and Sawhney 2021)
// on the middle of the prompt, `rounds` times on the survivors.
//  1. W = 0. For each vector u_i in order: y = <W, u_i>; through the kernel, sum over j < i of eta_j K_ij.
//  2. If |y| > c r^2: fail (or `clamp` p to [0, 1], or toss a `coin`).
//  3. p = 1/2 - y/(2 c r^2); eta_i = +1 iff U_i < p, else -1.  4. W += eta_i u_i.
//  5. The smaller sign class stays (equal sizes: +). Survivors have weight 2^rounds in both sums.
// Kernels: k <ki,kj>; kv <ki,kj><vi,vj>; expv exp(scale <ki,kj>)<vi,vj>, divided by its largest possible value. With
// the literal c the walk is a fair coin on real keys.
struct SelfBalancingWalk : Thinning<> {
  static constexpr MethodInfo info{
      .name = "self_balancing_walk",
      .title = "self-balancing walk, smaller class",
      .source = "BalanceKV, Han et al. 2025, Algorithm 2 and SoftmaxBalance",
      .tier = 1,
      .memory = "survivors of the middle, sinks, recent and later tokens, one weight",
      .deviation =
          "the printed update adds k_i instead of u_i. The size is random, at most half per round: the "
          "budget sets sinks and recent only.",
      .streams = false,
      .default_phase = Phase::oneshot,
  };
  static constexpr Hooks hooks{"evict extra_bytes layout traits failure_text rng_arrays state rng"};
  enum class Kernel { expv, k, kv };
  enum Failure : int32_t { walk_failed = 1, radius_too_small };
  Kernel kernel = Kernel::expv;
  double delta = kUnset, c = kUnset, r = kUnset;
  OnFail on_fail = OnFail::fail;
  int32_t rounds = 1;
  double scale = 1;
  std::span<double> state;  // packed rows of the walk
  Rng rng;

  static void declare(auto& d) {
    d.choice("kernel", &SelfBalancingWalk::kernel, {"expv", "k", "kv"}, "inner product to balance");
    d.real("delta", &SelfBalancingWalk::delta, {1e-300, 1}, "failure probability of the theorem", "1/n^2");
    d.real("c", &SelfBalancingWalk::c, {1e-300, 1e300}, "bound of |y| over r^2", "30 ln(n/delta)");
    d.real("r", &SelfBalancingWalk::r, {1e-300, 1e300}, "bound of the vectors' norms; kernels k and kv",
           "measured maximum");
    d.choice("on_fail", &SelfBalancingWalk::on_fail, {"fail", "clamp", "coin"}, "what happens when |y| > c r^2");
    d.integer("rounds", &SelfBalancingWalk::rounds, {1, 30}, "number of times the survivors are balanced");
    protect<SelfBalancingWalk>(d);
  }
  void resolve(const MethodContext& context) {
    Thinning::resolve(context);
    scale = context.scale;
    if (c == kUnset) c = theory::walk_constant(context.tokens, delta);
    if (r != kUnset && kernel == Kernel::expv)
      throw ParameterError("r",
                           "kernel expv is divided by its own maximum and takes no r; remove it, or use kernel "
                           "k or kv");
  }
  void traits(Traits& t) const { t.random = true; }
  std::vector<RngArray> rng_arrays(const MethodContext& s) const {
    return {{"U uniforms", RngStream::sign_walk, rounds, middle_of(s)}};
  }
  Layout layout(const MethodContext& s) const {
    const int64_t doubles = PackedRows::doubles(middle_of(s), s.shape.dim, s.shape.v_dim);
    return {.state_doubles = doubles, .scores = true, .weights = true};
  }
  void extra_bytes(ExtraBytes& charged, const auto& cache) const {
    charged.weight_floats = cache.evictions() > 0 ? 1 : 0;
  }
  static std::string failure_text(int32_t code, int32_t token) {
    if (code == radius_too_small)
      return "r is below the norm of token " + std::to_string(token) +
             "; set a larger r, or leave it out to measure it";
    return "the walk failed at token " + std::to_string(token) +
           ": |y| > c r^2; set a larger c, or on_fail clamp or coin";
  }

  // The scores hold the signs.
  void evict(const Team auto& team, Cache auto& cache) {
    if (cache.size() <= budget) return;
    for (int32_t round = 0; round < rounds; ++round) {
      const Middle m = middle(cache);
      const auto sign = [&](int32_t i) -> double& { return cache.score(m.first + i); };
      if (!walk(team, cache, m, round, sign)) return;
      const double small = smaller_class(team, m.count, sign);
      team.each(m.count, [&](int32_t i) { sign(i) = sign(i) == small ? 1 : 0; });
      evict_unscored(team, cache, m);
    }
    weigh_rows(team, cache, middle(cache), std::ldexp(1.0, rounds));
  }

 private:
  // Returns false if the method failed.
  bool walk(const Team auto& team, auto& cache, Middle m, int32_t round, auto sign) {
    const RowsFrom products{cache, m.first};
    const SoftmaxKernel expv = products.softmax_kernel(team, m.count, scale);
    const auto norm2 = [&](int32_t i) {
      const double keys = products.keys(i), values = products.values(i);
      return kernel == Kernel::k ? keys : kernel == Kernel::kv ? keys * values : expv(keys, values);
    };
    const PackedRows rows = products.packed(team, m.count, state);
    const auto K = [&](PackedRows::Tile& keys, const PackedRows::Tile& values) {
      if (kernel == Kernel::expv) expv(keys, values);
      if (kernel == Kernel::kv)
        for (size_t l = 0; l < std::size(keys); ++l) keys[l] *= values[l];
    };
    const Scored longest = team.largest(m.count, norm2);
    if (r != kUnset && r * r < longest.score * (1 - 1e-12)) {
      cache.fail(radius_too_small, cache.token(m.first + longest.index));
      return false;
    }
    const double r2 = kernel == Kernel::expv ? 1 : r != kUnset ? r * r : longest.score;
    const SelfBalancing rule{c * r2, on_fail};
    const auto decide = [&](int32_t i, double y) {
      return rule.sign(y, rng.uniform(RngStream::sign_walk, i, 0, round));
    };
    const int32_t failed = tile_walk(team, m.count, rows, K, decide, sign);
    if (failed >= 0) cache.fail(walk_failed, cache.token(m.first + failed));
    return failed < 0;
  }
};

}  // namespace kvreplay
