#pragma once
#include "theory/log_number.hpp"

// SubGen, Zandieh et al. 2024: Theorem 1, Corollary 1, Lemmas 1 and 2. The keys are (m, delta)-clusterable: they form m
// clusters, and no key is farther than delta from its representative. r = max ||scale q||: the paper's logits <q, k>
// have no factor, so the query includes it.

namespace kvreplay::theory {

struct SubGen {
  LogNumber t = 0;  // samples per cluster
  LogNumber s = 0;  // slots of the reservoir of values

  // Corollary 1: t = ceil(c_t eps^-2 exp(2 delta r) ln n), s = ceil(c_s eps^-2 d). The theorem gives only orders of
  // magnitude, so the constants are free.
  static SubGen of(double epsilon, double delta, double r, double n, double d, double c_t = 1, double c_s = 1) {
    const LogNumber per_epsilon = LogNumber(1) / (LogNumber(epsilon) * LogNumber(epsilon));
    return {(LogNumber(c_t) * per_epsilon * LogNumber::exp(2 * delta * r) * std::log(n)).ceil(),
            (LogNumber(c_s) * per_epsilon * d).ceil()};
  }

  // Rows for m clusters: t samples and a representative each, and the slots.
  LogNumber rows(double m) const { return m * (t + 1) + s; }
  // Numbers: keys of samples and representatives, keys and values of slots, counts and mu.
  LogNumber numbers(double m, double d, double v_dim) const { return m * (t + 1) * d + s * (d + v_dim) + m + 1; }
  // Operations per token, order of magnitude.
  LogNumber time_per_token(double m, double d) const { return d * (m * t + s); }
};

// Theorem 1: ||z/tau - o|| <= eps ||x||_2 ||V||_op, with this probability for each query.
constexpr double kSubGenProbability = 0.99;

// Memory is sub-linear if delta r = o(ln n) and m = o(n): t grows as n to this power (epsilon fixed).
inline double subgen_growth(double delta, double r, double n) { return 2 * delta * r / std::log(n); }

// Finite samples, without constants. The reservoir's numerator z has the mean z* and
//   E ||z - z*||^2 = (mu ||e||_2^2 - ||z*||^2)/s,   e = exp(l), mu = ||V||_F^2.
inline double subgen_numerator_variance(double mu, double e_norm2, double z_norm2, double s) {
  return (mu * e_norm2 - z_norm2) / s;
}
// Root mean square relative to ||e||_2 ||V||_F, comparable with the theorem after division by Z: at most 1/sqrt(s).
inline LogNumber subgen_numerator_rms(LogNumber s) { return LogNumber::exp(-s.ln() / 2); }
// The normaliser tau has mean Z and variance sum over clusters of n_i^2/t Var_i(e), Var_i the variance of exp(l) over
// the n_i keys of cluster i (divided by n_i). counts(i) is n_i, variances(i) is Var_i.
inline double subgen_normaliser_variance(int clusters, auto counts, auto variances, double t) {
  double sum = 0;
  for (int i = 0; i < clusters; ++i) {
    const auto n = double(counts(i));
    sum += n * n / t * variances(i);
  }
  return sum;
}

}  // namespace kvreplay::theory
