#pragma once
#include "methods/balancekv/walks.hpp"
#include "theory/walk.hpp"

namespace kvreplay {

// BalanceKV, Han et al. 2025, the version of the experiments: the middle tokens are halved T times. A round:
//  1. Cut the middle, in order, into blocks of b; the last is filled with zero vectors.
//  2. kc = k minus the mean of the block, zero rows included; v is multiplied by the token's weight w.
//  3. G_ij = exp(tau <kc_i, kc_j>/sqrt(d) - beta) (<v_i, v_j> + c0 + 1e-8).
//  4. In each block e_0 = +1, and e_i = +1 iff U < 1/2 - gamma y, y the sum over j < i of G_ij e_j.
//  5, 6. Truncate to half of them at a cut; kept rows before the cut double their weight (methods/balancekv/walks.hpp).
// Weights: w in the numerator; in the denominator 2^T for all survivors (`den: code`) or w.
// `walk: paper`: no filling, no centring; self_balancing_walk on each block, half of which stays; weight 2^T.
// `gamma: 0` is a fair coin with the same truncation. Its longer exact tail alone improves its error: compare it with
// uniform at the same `tail` (column extras).
struct BalanceKv : Thinning<> {
  static constexpr MethodInfo info{
      .name = "balancekv",
      .title = "discrepancy walk on blocks, repeated halving",
      .source = "BalanceKV, Han et al. 2025, experiments and released code",
      .tier = 1,
      .memory = "survivors of the middle with one weight each, sinks, recent and later tokens",
      .deviation =
          "tau, beta, c0, centring, integer weights and truncation are the released code's, not the "
          "paper's; the needle variant, a mask fixed by one layer for all later ones, is left out.",
      .streams = false,
      .default_phase = Phase::oneshot,
  };
  static constexpr Hooks hooks{"evict extra_bytes report layout traits rng_arrays state rng larger"};
  enum class Preset { single_layer, longbench };
  enum class Den { code, w };
  enum class Walk { reference, paper };
  Preset preset = Preset::single_layer;
  int32_t rounds = kDerived, block = kDerived;
  double gamma = 4, tau = kUnset, beta = 0, c0 = 0.025;
  Den den = Den::code;
  Walk walk = Walk::reference;
  double c = kUnset, delta = kUnset, temp = 1, scale = 1;
  int32_t done = 0, survivors = 0, tail = 0;  // rounds made, rows they left, and how many of these have weight 1
  int64_t record_doubles = 0;
  std::span<double> state;  // walk record, mean key of a block [dim], packed rows of a block
  Rng rng;
  const BalanceKv* larger = nullptr;

  static void declare(auto& d) {
    using M = BalanceKv;
    d.choice("preset", &M::preset, {"single_layer", "longbench"},
             "longbench: sinks 32, recent 32, rounds 2, block 128, tau 1");
    d.integer("rounds", &M::rounds, {1, 8}, "halvings of the middle", "smallest that fits the budget");
    d.integer("block", &M::block, {2, kManyTokens}, "tokens balanced together", "256");
    d.real("gamma", &M::gamma, {0, 1e300}, "pull of the walk; 0 is a fair coin");
    d.real("tau", &M::tau, {1e-300, 1e300}, "temperature of the keys' product", "0.1");
    d.real("beta", &M::beta, {-1e300, 1e300}, "subtracted in the exponent");
    d.real("c0", &M::c0, {-1e300, 1e300}, "added to the values' product");
    d.choice("den", &M::den, {"code", "w"}, "denominator weight: 2^rounds, or the numerator's");
    d.choice("walk", &M::walk, {"reference", "paper"}, "the released code's walk, or the paper's");
    d.real_or_word("c", &M::c, {0, 1e300}, "theory", "walk paper: bound of |y|; theory: 30 ln(n/delta); 0: greedy",
                   "theory");
    d.real("delta", &M::delta, {1e-300, 1}, "walk paper: failure probability of the theorem", "1/n^2");
    d.real("temp", &M::temp, {1e-300, 1e300}, "walk paper: factor on the scale in the kernel");
    protect<BalanceKv>(d);
  }
  void resolve(const MethodContext& context) {
    const bool longbench = preset == Preset::longbench;
    for (const auto& [given, of_longbench] : {std::pair{&sinks, 32}, {&recent, 32}, {&rounds, 2}})
      if (longbench && *given == kDerived) *given = of_longbench;
    if (block == kDerived) block = longbench ? 128 : 256;
    if (tau == kUnset) tau = longbench ? 1 : 0.1;
    if (c == kUnset || c == kRealWord) c = theory::walk_constant(context.tokens, delta);
    scale = context.scale;
    Thinning::resolve(context);
    record_doubles = WalkRecord::doubles(context.prompt_tokens);
  }
  void traits(Traits& t) const { t.random = true; }
  std::vector<RngArray> rng_arrays(const MethodContext& s) const {
    const int32_t T = rounds != kDerived ? rounds : rounds_to_fit(s.prompt_tokens, sinks);
    return {{"uniforms U", RngStream::sign_walk, T, middle_of(s)}};
  }
  Layout layout(const MethodContext& s) const {
    const int64_t rows = PackedRows::doubles(std::min(block, s.prompt_tokens), s.shape.dim, s.shape.v_dim);
    return {.state_doubles = record_doubles + s.shape.dim + rows, .scores = true, .weights = true};
  }
  void extra_bytes(ExtraBytes& charged, const auto&) const { charged.weight_floats = survivors; }
  void report(auto& extras, const auto&) const { extras["rounds"] = done, extras["tail"] = tail; }

  // Scores hold the signs of a round, and then the factor for each weight (0: evicted).
  void evict(const Team auto& team, Cache auto& cache) {
    const int32_t T = rounds != kDerived ? rounds : rounds_to_fit(cache.size(), middle(cache).first);
    for (; done < T; ++done) {
      const Middle m = middle(cache);
      record().open(team, done, m.count);
      for (int32_t b = 0; b < m.count; b += block)
        sign(team, cache, {done, b, m.first + b, m.count - b < block ? m.count - b : block});
      if (walk == Walk::reference) truncate_at_cut(cache, m);  // steps 5 and 6
      const auto w = [&](int32_t i) { return cache.score(i) * cache.num(i); };
      cache.weigh_rows(team, m.first, m.count, [&](int32_t i) { return RowWeights{w(i), w(i)}; });
      evict_unscored(team, cache, m);
    }
    if (done > 0) weigh(team, cache);
  }

 private:
  WalkRecord record() const { return WalkRecord(state.first(size_t(record_doubles))); }
  std::span<double> scratch() const { return state.subspan(size_t(record_doubles)); }
  // Reuses a block's signs from a larger budget, unless draws are injected: injected draws depend on the budget.
  void sign(const Team auto& team, auto& cache, WalkedBlock b) {
    const bool shares = larger != nullptr && larger->done > done && rng.injected[0].values == nullptr;
    if (shares && larger->record().holds(team, cache, b, block)) larger->record().give(team, cache, b);
    else walk_block(team, cache, b, [&](int32_t i) -> double& { return cache.score(b.first + i); });
    record().keep(team, cache, b);
    if (walk == Walk::paper) smaller_half(team, cache, {b.first, b.count});
  }
  void walk_block(const Team auto& team, auto& cache, WalkedBlock b, auto sign) {
    const RowsFrom products{cache, b.first};
    const auto u = [&](int32_t i) { return rng.uniform(RngStream::sign_walk, b.begin + i, 0, done); };
    if (walk == Walk::paper) self_balance(team, products, b.count, u, sign);
    else pull(team, products, b.count, u, sign);
  }
  // Steps 2 to 4; the zero rows come last, so no token's sign depends on theirs.
  void pull(const Team auto& team, const auto& products, int32_t n, auto u, auto sign) {
    const auto decide = [&](int32_t i, double y) { return i == 0 || u(i) < 0.5 - gamma * y ? 1.0 : -1.0; };
    if (gamma == 0) return team.each(n, [&](int32_t i) { sign(i) = decide(i, 0); });
    const auto mean = products.mean_key(team, n, block, scratch());
    const PackedRows rows = products.packed(team, n, scratch().subspan(mean.size()), mean, true);
    const auto G = [&, root = std::sqrt(double(mean.size()))](auto& keys, const auto& values) {
      for (double& x : keys) x = tau * x / root - beta;
      exponentiate(keys);
      for (size_t l = 0; l < std::size(keys); ++l) keys[l] *= values[l] + c0 + 1e-8;
    };
    tile_walk(team, n, rows, G, decide, sign);
  }
  void self_balance(const Team auto& team, const auto& products, int32_t n, auto u, auto sign) {
    const SoftmaxKernel K = products.softmax_kernel(team, n, scale * temp);
    const PackedRows rows = products.packed(team, n, scratch());
    const SelfBalancing rule{c, OnFail::clamp};
    const auto decide = [&](int32_t i, double y) { return c > 0 ? rule.sign(y, u(i)) : y <= 0 ? 1.0 : -1.0; };
    tile_walk(team, n, rows, K, decide, sign);
  }
  void weigh(const Team auto& team, auto& cache) {
    const Middle m = middle(cache);
    survivors = m.count;
    tail = team.count(m.count, [&](int32_t i) { return cache.num(m.first + i) == 1; });
    const auto halved = [&](int32_t i) { return RowWeights{double(cache.num(i)), std::ldexp(1.0, done)}; };
    if (den == Den::code) cache.weigh_rows(team, m.first, m.count, halved);
  }
};

}  // namespace kvreplay
