#include "measures/epsilon_forms.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

// ||numerator error|| / (j exp(-r^2/sqrt(d)) max ||v||) of the unnormalised sums, in logarithms until the
// end: exp of a logit and exp(r^2/sqrt(d)) can each leave the range of a double.
double additive_form(const ScoredRow& row) {
  const double numerator2 = row.comparison.numerator2;
  if (numerator2 == 0) return 0;
  const double numerator = 0.5 * std::log(numerator2) + row.log_normaliser;
  const double tokens = row.token + 1;
  return std::exp(numerator + row.m.spread - std::log(tokens * row.v_largest));
}

}  // namespace

EpsilonForms::EpsilonForms(int32_t heads, int64_t rows, Wanted wanted) : wanted_(wanted) {
  if (!wanted.bounds && !wanted.quantiles) return;
  spectral_.reserve(size_t(heads) * size_t(rows));
  frobenius_.reserve(size_t(heads) * size_t(rows));
}

void EpsilonForms::add(const ScoredRow& row) {
  const double l2 = row.l2, v_op = row.v_operator, v_fro = row.v_frobenius;
  if (!(l2 * v_fro > 0)) return;
  const bool keeps = wanted_.bounds || wanted_.quantiles;
  const double frobenius = row.error / (l2 * v_fro);
  frobenius_sums_.add(frobenius);
  if (keeps) frobenius_.push_back(frobenius);
  if (v_op > 0) {  // nobody asks for it otherwise
    const double spectral = row.error / (l2 * v_op);
    spectral_sums_.add(spectral);
    if (keeps) spectral_.push_back(spectral);
  }
  if (row.m.spread != kUnset) additive_.add(additive_form(row));
}

void EpsilonForms::finish(CellMeasures& measures, const ErrorBound& error_bound) {
  measures.eps_spectral_mean = spectral_sums_.mean(), measures.eps_spectral_max = spectral_sums_.maximum();
  measures.eps_frobenius_mean = frobenius_sums_.mean();
  measures.eps_frobenius_max = frobenius_sums_.maximum();
  measures.eps_additive_mean = additive_.finite_mean();
  if (wanted_.bounds && error_bound.norm == ErrorBound::Norm::spectral)
    compare(measures, error_bound, spectral_, measures.eps_spectral_mean);
  if (wanted_.bounds && error_bound.norm == ErrorBound::Norm::frobenius)
    compare(measures, error_bound, frobenius_, measures.eps_frobenius_mean);
  if (!wanted_.quantiles) return;
  if (!spectral_.empty()) measures.eps_spectral_p99 = quantile(spectral_, 0.99);
  if (!frobenius_.empty()) measures.eps_frobenius_p99 = quantile(frobenius_, 0.99);
}

void EpsilonForms::compare(CellMeasures& measures, const ErrorBound& error_bound,
                           const std::vector<double>& measured, std::optional<double> mean) {
  measures.bound_epsilon = error_bound.epsilon;
  measures.bound_probability = error_bound.probability;
  measures.bound_capped = error_bound.capped;
  if (measured.empty()) return;
  const auto within = std::count_if(measured.begin(), measured.end(),
                                    [&](double epsilon) { return epsilon <= error_bound.epsilon; });
  measures.bound_holds = double(within) / double(measured.size());
  if (*mean > 0) measures.bound_slack = error_bound.epsilon / *mean;
}

}  // namespace kvreplay
