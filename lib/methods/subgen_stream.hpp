#pragma once
#include "core/linear.hpp"
#include "core/policy.hpp"
#include "theory/subgen.hpp"

namespace kvreplay {

// SubGen, Zandieh et al. 2024, Algorithm 1: the normaliser from samples of online clusters of the keys, the numerator
// from a sample of the values. Token by token, from the first token of the prompt on:
//  1. i = the cluster whose representative is nearest to k (ties: the oldest).
//  2. None within delta: a new cluster with permanent representative k, t samples k, count 1.
//  3. Otherwise n_i += 1, and each of its t samples becomes k with probability 1/n_i.
//  4. Each of the s slots of the reservoir becomes (k, v) with probability ||v||^2 / (mu + ||v||^2).
//  5. mu += ||v||^2.
//  6. Output z / tau: z sums mu / (s ||v||^2) exp(l) v over slots, tau sums n_i/t exp(l) over samples.
// Rows: sinks; s slots (in z alone); for each cluster a representative (in neither) and t samples (in tau alone). The
// score of a slot is ||v||^2, or 0 if it is empty; that of a representative is n_i.
struct SubGenStream {
  static constexpr MethodInfo info{
      .name = "subgen_stream",
      .title = "online clusters of keys, reservoir of values",
      .source = "SubGen, Zandieh et al. 2024, Algorithm 1, section 2",
      .tier = 1,
      .memory = "m(t+1) keys of m clusters, s keys and s values, m counts, mu; can exceed the full cache",
      .deviation =
          "sampled by ||v||^2 (a sentence of the paper prints ||k||^2); sinks are not in the paper. "
          "delta_rel and epsilon see the whole trace, the future included: for analyses.",
      .oneshots = false,
      .any_positions = false,
      .takes_budget = false,
      .implied_layout = true,
      .needs_linear_logits = true,
      .needs_every_token = true,
  };
  static constexpr Hooks hooks{"append extra_bytes report layout oracle_needs traits error_bound rng_arrays state rng"};
  double delta = kUnset, delta_rel = kUnset, epsilon = kUnset;
  int32_t t = 8, s = 128, sinks = 0, t_max = 64, s_max = 2048;
  double c_t = 1, c_s = 1, radius = 0;
  theory::SubGen asked;            // t and s before the caps
  int32_t samples = 0, slots = 0;  // t and s after the caps
  std::span<double> state;         // mu
  Rng rng;

  static void declare(auto& d) {
    const char* either = "none: set delta or delta_rel";
    d.real("delta", &SubGenStream::delta, {0, 1e300}, "largest distance to a representative", either);
    d.real("delta_rel", &SubGenStream::delta_rel, {0, 1e300},
           "delta over the median distance of two keys of the whole trace (sees the future)", either);
    d.integer("t", &SubGenStream::t, {1, kManyTokens}, "samples per cluster");
    d.integer("s", &SubGenStream::s, {1, kManyTokens}, "slots of the reservoir");
    d.real("epsilon", &SubGenStream::epsilon, {1e-6, 1 - 1e-6},
           "error from which t and s are derived, by the trace's largest query (sees the future)", "unset");
    d.integer("sinks", &SubGenStream::sinks, {0, kManyTokens}, "first tokens, held exactly outside of both");
    d.integer("t_max", &SubGenStream::t_max, {1, kManyTokens}, "largest t that epsilon can lead to");
    d.integer("s_max", &SubGenStream::s_max, {1, kManyTokens}, "largest s that epsilon can lead to");
    d.real("c_t", &SubGenStream::c_t, {1e-300, 1e300}, "constant of the theory's t");
    d.real("c_s", &SubGenStream::c_s, {1e-300, 1e300}, "constant of the theory's s");
  }
  void resolve(const MethodContext& context) {
    if ((delta == kUnset) == (delta_rel == kUnset))
      throw ParameterError("delta", "subgen_stream needs one radius: set either delta or delta_rel");
    samples = t, slots = s, radius = delta != kUnset ? delta : delta_rel * context.median_key_distance;
    if (epsilon == kUnset) return;
    const double r = context.scale * context.largest_query_norm;  // the paper's query includes the scale
    asked = theory::SubGen::of(epsilon, radius, r, std::max(2, context.tokens), context.shape.dim, c_t, c_s);
    samples = int32_t(std::min<double>(asked.t.nearest(), t_max));
    slots = int32_t(std::min<double>(asked.s.nearest(), s_max));
  }
  OracleNeeds oracle_needs() const { return {delta_rel != kUnset, epsilon != kUnset}; }
  void traits(Traits& own) const { own.random = own.streams_prompt = true; }
  std::vector<RngArray> rng_arrays(const MethodContext& context) const {
    return {{"UD", RngStream::subgen_clusters, 1, context.tokens, samples},
            {"UM", RngStream::subgen_reservoir, 1, context.tokens, slots}};
  }
  Layout layout(const MethodContext& context) const {
    const int64_t most = slots + int64_t(context.tokens) * (samples + 1);
    return {.state_doubles = 1, .scores = true, .weights = true, .split = true, .extra_rows = most};
  }
  void extra_bytes(ExtraBytes& c, const auto& cache) const { c.weight_floats = clusters(cache) + 1; }
  void report(auto& extras, const auto& cache) const {
    extras["clusters"] = clusters(cache), extras["mu"] = state[0], extras["delta"] = radius;
    if (epsilon == kUnset) return;
    extras["t"] = samples, extras["s"] = slots, extras["bound_log10_tokens"] = asked.rows(clusters(cache)).log10();
  }
  ErrorBound error_bound() const {
    if (epsilon == kUnset) return {};
    return {ErrorBound::Norm::spectral, epsilon, theory::kSubGenProbability, asked.t > samples || asked.s > slots};
  }

  template <class Real>
  void append(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    if (token.index < sinks) return cache.push(token);
    if (cache.size() <= sinks)  // empty slots: the first value fills them all
      for (int32_t j = 0; j < slots; ++j) cache.push(token, 0, 0);
    add_key(team, token, cache);
    add_value(team, token, cache);
    cache.push(token, 0, 0);  // evicted by the next line, unless a sample or a slot has taken it
    cache.drop(team, cache.size() - 1);
  }

  int32_t clusters(const auto& cache) const {
    return cache.size() <= sinks ? 0 : (cache.size() - sinks - slots) / (samples + 1);
  }
  int32_t representative(int32_t i) const { return sinks + slots + i * (samples + 1); }

 private:
  // Steps 1 to 3.
  template <class Real>
  void add_key(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    const auto near = [&](int32_t i) { return -std::sqrt(squared_distance(cache.key(representative(i)), token.key)); };
    const Scored nearest = team.largest(clusters(cache), near);
    if (nearest.index < 0 || -nearest.score > radius) {
      cache.push(token, 0, 0);
      cache.score(cache.size() - 1) = 1;
      for (int32_t j = 0; j < samples; ++j) cache.push(token, 0, Real(1.0 / samples));
      return;
    }
    const int32_t row = representative(nearest.index);
    const double n = cache.score(row) + 1;
    cache.score(row) = n;
    for (int32_t j = 0; j < samples; ++j) {
      if (rng.uniform(RngStream::subgen_clusters, token.index, j) < 1 / n)
        cache.replace(row + 1 + j, token, 0, Real(n / samples));
      else cache.weigh(row + 1 + j, 0, n / samples);
    }
  }
  // Steps 4 and 5.
  template <class Real>
  void add_value(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    const double w = wide_dot(token.value, token.value), mu = state[0] + w, p = w > 0 ? w / mu : 0;
    state[0] = mu;
    team.each(slots, [&](int32_t j) {
      cache.mark(sinks + j) = p > 0 && rng.uniform(RngStream::subgen_reservoir, token.index, j) < p;
    });
    for (int32_t j = 0; j < slots; ++j) {
      if (cache.mark(sinks + j) == 0) continue;
      cache.replace(sinks + j, token, 0, 0);
      cache.score(sinks + j) = w;
    }
    const auto weight = [&](double held) { return held > 0 ? mu / (slots * held) : 0.0; };
    cache.weigh_rows(team, sinks, slots, [&](int32_t i) { return RowWeights{weight(cache.score(i)), 0}; });
  }
};

}  // namespace kvreplay
