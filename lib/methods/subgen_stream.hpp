#pragma once
#include <cmath>
#include <map>
#include <vector>

#include "core/linear.hpp"
#include "core/policy.hpp"

namespace kvreplay {

// SubGen, Zandieh et al. 2024, Algorithm 1: the normaliser from samples of online clusters of the keys, the
// numerator from a sample of the values. Token by token, from the first one of the prompt on:
//  1. i = the cluster whose representative is nearest to k (ties: the oldest).
//  2. None within delta: a new cluster with representative k, t samples k, count 1. Representatives never
//  move.
//  3. Otherwise n_i += 1, and each of its t samples becomes k with probability 1/n_i.
//  4. Each of the s slots of the reservoir becomes (k, v) with probability ||v||^2 / (mu + ||v||^2).
//  5. mu += ||v||^2.
//  6. z = sum over slots of mu / (s ||v||^2) exp(l) v,  tau = sum over clusters of n_i/t sum over samples of
//  exp(l);
//     the output is z / tau.
// Rows: the sinks, then the s slots, which count for z alone, then for each cluster its representative, which
// counts for nothing, and its t samples, which count for tau alone. A row's score is what its place needs:
// ||v||^2 of a slot (0: empty), n_i of a representative.
struct SubGenStream {
  static constexpr MethodInfo info{
      .name = "subgen_stream",
      .title = "online clusters of keys, reservoir of values",
      .source = "SubGen, Zandieh et al. 2024, Algorithm 1, section 2",
      .tier = 1,
      .memory = "m(t+1) keys of m clusters, s keys and s values, m counts, mu; can exceed the full cache",
      .deviation =
          "values are sampled by ||v||^2 (one sentence of the paper prints ||k||^2); sinks are not in the "
          "paper. "
          "delta_rel and epsilon use the whole trace, the future included: for analyses.",
      .oneshots = false,
      .any_positions = false,
      .takes_budget = false,
      .implied_layout = true,
      .needs_linear_logits = true,
      .needs_every_token = true,
  };
  double delta = kUnset, delta_rel = kUnset, epsilon = kUnset;
  int32_t t = 8, s = 128, sinks = 0, t_max = 64, s_max = 2048;
  double c_t = 1, c_s = 1;
  double radius = 0, theory_log_t = 0, theory_s = 0;  // what follows, before the caps
  int32_t samples = 0, slots = 0;
  std::span<double> state;  // mu
  Draws draws;

  static void declare(auto& d) {
    const char* either = "none: give delta or delta_rel";
    d.real("delta", &SubGenStream::delta, {0, 1e300}, "largest distance of a key to its representative",
           either);
    d.real("delta_rel", &SubGenStream::delta_rel, {0, 1e300},
           "delta as a multiple of the median distance of two keys of the whole trace (sees the future)",
           either);
    d.integer("t", &SubGenStream::t, {1, kManyTokens}, "samples of a cluster");
    d.integer("s", &SubGenStream::s, {1, kManyTokens}, "slots of the reservoir");
    d.real("epsilon", &SubGenStream::epsilon, {1e-6, 1 - 1e-6},
           "error that t and s are to follow from (Corollary 1), by the largest query of the trace (sees the "
           "future)",
           "unset");
    d.integer("sinks", &SubGenStream::sinks, {0, kManyTokens},
              "first tokens that are held exactly, outside of both");
    d.integer("t_max", &SubGenStream::t_max, {1, kManyTokens}, "most t that epsilon can ask for");
    d.integer("s_max", &SubGenStream::s_max, {1, kManyTokens}, "most s that epsilon can ask for");
    d.real("c_t", &SubGenStream::c_t, {1e-300, 1e300}, "constant of the theory's t");
    d.real("c_s", &SubGenStream::c_s, {1e-300, 1e300}, "constant of the theory's s");
  }
  void resolve(const Scene& scene) {
    if ((delta == kUnset) == (delta_rel == kUnset))
      throw ParameterError("delta", "subgen_stream needs one radius: give either delta or delta_rel");
    radius = delta != kUnset ? delta : delta_rel * scene.median_key_distance;
    samples = t, slots = s;
    if (epsilon != kUnset) follow_theory(scene);
  }
  Hindsight hindsight() const {
    return {.median_key_distance = delta_rel != kUnset, .largest_query_norm = epsilon != kUnset};
  }
  static bool random(const SubGenStream&) { return true; }
  static bool streams_prompt() { return true; }
  std::vector<DrawArray> draw_arrays(const Scene& scene) const {
    return {{"UD", Structure::subgen_clusters, 1, scene.tokens, samples},
            {"UM", Structure::subgen_reservoir, 1, scene.tokens, slots}};
  }
  Layout layout(const Scene& scene) const {
    const int64_t most = slots + int64_t(scene.tokens) * (samples + 1);
    return {.state_doubles = 1, .scores = true, .weights = true, .split = true, .extra_rows = most};
  }
  void charge(Charge& c, const auto& cache) const { c.weight_floats = clusters(cache) + 1; }
  void report(std::map<std::string, double>& extras, const auto& cache) const {
    extras["clusters"] = clusters(cache);
    extras["mu"] = state[0];
    extras["delta"] = radius;
    if (epsilon == kUnset) return;
    extras["t"] = samples, extras["s"] = slots;
    extras["bound_capped"] = theory_log_t > std::log(samples) || theory_s > slots ? 1 : 0;
    // m (t + 1) + s, where t can exceed what a double holds.
    const double log_keys = std::log(clusters(cache)) + theory_log_t + std::log1p(std::exp(-theory_log_t));
    extras["bound_log10_tokens"] =
        (log_keys + std::log1p(std::exp(std::log(theory_s) - log_keys))) / std::log(10.0);
  }

  template <class Real>
  KVR_FN void append(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    if (token.index < sinks) return cache.push(team, token);
    if (cache.size() <= sinks)
      for (int32_t j = 0; j < slots; ++j)
        cache.push(team, token, 0, 0);  // empty: the first value fills them all
    add_key(team, token, cache);
    add_value(team, token, cache);
    cache.push(team, token, 0, 0);  // and gone for good, unless one of the two has taken it
    cache.drop(team, cache.size() - 1);
  }

  KVR_FN int32_t clusters(const auto& cache) const {
    return cache.size() <= sinks ? 0 : (cache.size() - sinks - slots) / (samples + 1);
  }
  KVR_FN int32_t slot(int32_t j) const { return sinks + j; }
  KVR_FN int32_t representative(int32_t i) const { return sinks + slots + i * (samples + 1); }

 private:
  // Steps 1 to 3.
  template <class Real>
  KVR_FN void add_key(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    const Scored nearest = team.largest(clusters(cache), [&](int32_t i) {
      return -std::sqrt(squared_distance(cache.key(representative(i)), token.key));
    });
    if (nearest.index < 0 || -nearest.score > radius) {
      cache.push(team, token, 0, 0);
      if (team.rank() == 0) cache.score(cache.size() - 1) = 1;
      for (int32_t j = 0; j < samples; ++j) cache.push(team, token, 0, Real(1.0 / samples));
      return;
    }
    const int32_t row = representative(nearest.index);
    const double n = cache.score(row) + 1;
    team.sync();
    if (team.rank() == 0) cache.score(row) = n;
    for (int32_t j = 0; j < samples; ++j) {
      const bool taken = draws.uniform(Structure::subgen_clusters, token.index, j) < 1 / n;
      if (taken) cache.replace(team, row + 1 + j, token, 0, Real(n / samples));
      else cache.weigh(team, row + 1 + j, 0, n / samples);
    }
  }
  // Steps 4 and 5.
  template <class Real>
  KVR_FN void add_value(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    const double w = wide_dot(token.value, token.value), mu = state[0] + w;
    const double p = w > 0 ? w / mu : 0;
    team.sync();
    if (team.rank() == 0) state[0] = mu;
    for (int32_t j = 0; j < slots; ++j) {
      if (p > 0 && draws.uniform(Structure::subgen_reservoir, token.index, j) < p) {
        cache.replace(team, slot(j), token, 0, 0);
        if (team.rank() == 0) cache.score(slot(j)) = w;
        team.sync();
      }
      const double held = cache.score(slot(j));
      cache.weigh(team, slot(j), held > 0 ? mu / (slots * held) : 0.0, 0);
    }
  }
  // Corollary 1, with the factor of the logits in the query.
  void follow_theory(const Scene& scene) {
    const double r = scene.scale * scene.largest_query_norm, n = std::max(3, scene.tokens);
    theory_log_t = std::log(c_t) - 2 * std::log(epsilon) + 2 * radius * r + std::log(std::log(n));
    theory_s = std::ceil(c_s / (epsilon * epsilon) * scene.shape.dim);
    samples =
        theory_log_t > std::log(t_max) ? t_max : std::max(1, int32_t(std::ceil(std::exp(theory_log_t))));
    samples = std::min(samples, t_max);
    slots = int32_t(std::min<double>(theory_s, s_max));
  }
};

}  // namespace kvreplay
