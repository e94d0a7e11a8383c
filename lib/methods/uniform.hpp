#pragma once
#include "methods/balancekv/balancekv.hpp"

namespace kvreplay {

// Uniform sampling, the baseline of BalanceKV: sinks and recent prompt tokens stay exact. m of the M tokens between
// them are sampled without replacement, and each represents M/m of them.
//  1. Draw u_j for each middle token.  2. Keep the m with the smallest u_j (ties: lower index).
//  3. Their weight is M/m in numerator and denominator; sinks, recents and later tokens have weight 1.
// `tail: c`: the last c middle tokens stay exact, and m - c of the other M - c are sampled. With c = the survivors of
// weight 1 of a balancekv run (its column extras) the two methods differ only by the walk. Variants: `coin` = balancekv
// with gamma 0, including its truncation. `notebook` = rounds of fair coins: the first of each block gets +, stable
// sort (- before +), the first half goes on in that order, weight 2^rounds.
struct Uniform : Thinning<> {
  static constexpr MethodInfo info{
      .name = "uniform",
      .title = "uniform sample, reweighted",
      .source = "baseline of BalanceKV, Han et al. 2025, section 4",
      .tier = 1,
      .memory = "B prompt tokens and every later one, one weight",
      .deviation =
          "exactly m tokens; the released function cannot run and the notebook's sampler is slightly "
          "non-uniform (variant notebook).",
      .streams = false,
      .default_phase = Phase::oneshot,
  };
  static constexpr Hooks hooks{"evict extra_bytes layout traits rng_arrays state rng"};
  enum class Weights { ratio, none, pow2 };
  enum class Variant { sample, coin, notebook };
  int32_t m = kDerived, rounds = kDerived, tail = 0, block = 256;
  Weights weights = Weights::ratio;
  Variant variant = Variant::sample;
  BalanceKv coins;
  std::span<double> state;  // `coin`: its state; `notebook`: indices of middle tokens [M], and of those with + [M]
  Rng rng;

  static void declare(auto& d) {
    protect<Uniform>(d);
    d.integer("m", &Uniform::m, {0, kManyTokens}, "middle tokens that are kept",
              "B - sinks - recent, or floor(M/2^rounds)");
    d.integer("rounds", &Uniform::rounds, {1, 8}, "keep as many tokens as this number of halvings", "unset");
    d.choice("weights", &Uniform::weights, {"ratio", "none", "pow2"}, "weight of sampled tokens: M/m, 1 or 2^rounds");
    d.integer("tail", &Uniform::tail, {0, kManyTokens}, "how many of the m are the last middle tokens, kept exactly");
    d.choice("variant", &Uniform::variant, {"default", "coin", "notebook"}, "how the sample is drawn");
    d.integer("block", &Uniform::block, {2, kManyTokens}, "variants coin and notebook: tokens per block");
  }
  void resolve(const MethodContext& context) {
    Thinning::resolve(context);
    if (variant != Variant::sample && (m != kDerived || tail > 0))
      throw ParameterError(tail > 0 ? "tail" : "m",
                           "variants coin and notebook halve the middle and take neither m "
                           "nor tail; set rounds");
    if (variant == Variant::coin) {
      coins.sinks = sinks, coins.recent = recent, coins.rounds = rounds, coins.block = block, coins.gamma = 0;
      coins.resolve(context);
    }
    if (variant == Variant::sample) resolve_sample(middle_of(context));
  }
  void traits(Traits& t) const { t.random = true; }
  std::vector<RngArray> rng_arrays(const MethodContext& s) const {
    if (variant == Variant::coin) return coins.rng_arrays(s);
    const int32_t T = variant == Variant::sample ? 1 : rounds_of(s.prompt_tokens, sinks);
    return {{"u U uniforms", RngStream::uniform_sampling, T, middle_of(s)}};
  }
  Layout layout(const MethodContext& s) const {
    if (variant == Variant::coin) return coins.layout(s);
    const bool sorts = variant == Variant::notebook;
    const int64_t places = sorts ? 2 * int64_t(middle_of(s)) : 0;
    return {.state_doubles = places, .scores = true, .weights = sorts || weights != Weights::none};
  }
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    if (variant == Variant::coin) coins.extra_bytes(c, cache);
    else c.weight_floats = weights != Weights::none && cache.evictions() > 0 ? 1 : 0;
  }

  void evict(const Team auto& team, Cache auto& cache) {
    if (variant == Variant::coin) {
      coins.state = state, coins.rng = rng;
      coins.evict(team, cache);
    } else if (cache.size() > budget) {
      if (variant == Variant::sample) sample(team, cache);
      else toss(team, cache);
    }
  }

 private:
  int32_t rounds_of(int32_t held, int32_t first) const {
    return rounds != kDerived ? rounds : rounds_to_fit(held, first);
  }
  void resolve_sample(int32_t M) {
    const int32_t room = budget - sinks - recent, halved = rounds == kDerived ? -1 : M >> rounds;
    if (m == kDerived) m = rounds == kDerived ? room : halved;
    if (m > room && m != halved)
      throw ParameterError("m", "m " + std::to_string(m) + " with sinks " + std::to_string(sinks) + " and recent " +
                                    std::to_string(recent) + " exceeds the budget of " + std::to_string(budget));
    if (tail > m)
      throw ParameterError("tail", "tail " + std::to_string(tail) + " exceeds the " + std::to_string(m) +
                                       " middle tokens that are kept");
    if (weights == Weights::pow2 && rounds == kDerived)
      throw ParameterError("rounds", "weights pow2 are 2^rounds; set rounds");
  }
  double uniform(int32_t j, int32_t round) const { return rng.uniform(RngStream::uniform_sampling, j, 0, round); }

  void sample(const Team auto& team, auto& cache) {
    const Middle all = middle(cache);
    const int32_t M = all.count - tail, sampled = m - tail;
    if (all.count <= m) return;
    team.each(M, [&](int32_t j) { cache.score(all.first + j) = -uniform(j, 0); });
    keep_best(team, cache, {.sinks = sinks, .recent = recent + tail}, sampled,
              [&](int32_t i) { return cache.score(i); });
    if (weights == Weights::none) return;
    const double w = weights == Weights::ratio ? double(M) / sampled : std::ldexp(1.0, rounds);
    weigh_rows(team, cache, {all.first, sampled}, w);
  }
  void toss(const Team auto& team, auto& cache) {
    const Middle all = middle(cache);
    const int32_t T = rounds_of(cache.size(), all.first);
    team.each(all.count, [&](int32_t j) { state[size_t(j)] = j; });
    int32_t left = all.count;
    for (int32_t round = 0; round < T; ++round, left /= 2) sort_by_coin(left, round);
    team.each(all.count, [&](int32_t j) { cache.score(all.first + j) = 0; });
    team.each(left, [&](int32_t j) { cache.score(all.first + int32_t(state[size_t(j)])) = 1; });
    evict_unscored(team, cache, all);
    weigh_rows(team, cache, {all.first, left}, std::ldexp(1.0, T));
  }
  // Sorts the first `left` tokens: those with - before those with +.
  void sort_by_coin(int32_t left, int32_t round) {
    double* const of_plus = state.data() + state.size() / 2;
    int32_t minus = 0, plus = 0;
    for (int32_t j = 0; j < left; ++j) {
      const bool is_minus = j % block != 0 && uniform(j, round) >= 0.5;
      (is_minus ? state[size_t(minus++)] : of_plus[plus++]) = state[size_t(j)];
    }
    for (int32_t j = 0; j < plus; ++j) state[size_t(minus + j)] = of_plus[j];
  }
};

}  // namespace kvreplay
