#include <algorithm>
#include <cmath>

#include "measures/measure.hpp"
#include "measures/sums.hpp"

// The left sides of the theorems, and whether they are within a method's bound.

namespace kvreplay {
namespace {

// ||numerator error|| / (j exp(-r^2/sqrt(d)) max ||v||) of the unnormalised sums. Computed in logarithms until the end,
// because exp of a logit and exp(r^2/sqrt(d)) can each exceed the range of double.
double additive_form(const MeasuredRow& r) {
  if (r.row.numerator2 == 0) return 0;
  const double numerator = 0.5 * std::log(r.row.numerator2) + r.exact.log_normaliser;
  const double tokens = r.exact.token + 1;
  return std::exp(numerator + r.row.spread - std::log(tokens * r.exact.v_largest));
}

// The mass that the row misses. A sink logit counts as kept.
double missed_mass(const MeasuredRow& r) {
  const bool all = r.row.attended >= r.exact.visible;  // independent of tau's rounding
  return all ? 0 : std::max(0.0, 1 - r.row.tau);
}

class TheoremErrors final : public Measure {
 public:
  explicit TheoremErrors(const MeasureShape& shape)
      : wanted_(shape.wanted), keeps_(wanted_.has(Work::bounds | Work::quantiles)) {
    if (!keeps_) return;
    spectral_.reserve(size_t(shape.heads) * size_t(shape.rows));
    frobenius_.reserve(size_t(shape.heads) * size_t(shape.rows));
  }

  void add(const MeasuredRow& r) override {
    partition_sums_.add(std::abs(r.row.tau - 1));
    if (keeps_) partition_.push_back(std::abs(r.row.tau - 1));
    if (r.row.missed_bound != RowResult::kNone) {
      missed_bounds_.add(r.row.missed_bound), missed_.add(missed_mass(r));
      missed_within_ += missed_mass(r) <= r.row.missed_bound ? 1 : 0;
    }
    const double l2 = r.exact.l2, v_operator = r.exact.v_operator, v_frobenius = r.exact.v_frobenius;
    if (!(l2 * v_frobenius > 0)) return;
    const double frobenius = r.error / (l2 * v_frobenius);
    frobenius_sums_.add(frobenius);
    if (keeps_) frobenius_.push_back(frobenius);
    if (v_operator > 0) {  // 0 unless spectral norms are wanted
      const double spectral = r.error / (l2 * v_operator);
      spectral_sums_.add(spectral);
      if (keeps_) spectral_.push_back(spectral);
    }
    if (r.row.spread != kUnset) additive_.add(additive_form(r));
  }

  void finish(Measured& to, const ErrorBound& bound) override {
    to["eps_spectral_mean"] = spectral_sums_.mean(), to["eps_spectral_max"] = spectral_sums_.maximum();
    to["eps_frobenius_mean"] = frobenius_sums_.mean(), to["eps_frobenius_max"] = frobenius_sums_.maximum();
    to["eps_additive_mean"] = additive_.finite_mean();
    if (wanted_.has(Work::bounds) && bound.norm == ErrorBound::Norm::spectral)
      compare(to, bound, spectral_, spectral_sums_);
    if (wanted_.has(Work::bounds) && bound.norm == ErrorBound::Norm::frobenius)
      compare(to, bound, frobenius_, frobenius_sums_);
    if (wanted_.has(Work::bounds) && bound.norm == ErrorBound::Norm::partition)
      compare(to, bound, partition_, partition_sums_);
    to["missed_mass_bound_mean"] = missed_bounds_.mean();
    if (wanted_.has(Work::bounds) && bound.norm == ErrorBound::Norm::missed_mass && missed_bounds_.count() > 0)
      compare_missed(to, bound);
    if (!wanted_.has(Work::quantiles)) return;
    if (!spectral_.empty()) to["eps_spectral_p99"] = quantile(spectral_, 0.99);
    if (!frobenius_.empty()) to["eps_frobenius_p99"] = quantile(frobenius_, 0.99);
  }

 private:
  static void compare(Measured& to, const ErrorBound& bound, const std::vector<double>& measured, const Sums& sums) {
    to["bound_epsilon"] = bound.epsilon;
    to["bound_probability"] = bound.probability;
    to["bound_capped"] = bound.capped ? 1.0 : 0.0;  // 0 or 1, so that a mean over cells is a share
    if (measured.empty()) return;
    const auto holds = [&](double epsilon) { return epsilon <= bound.epsilon; };
    const auto within = std::count_if(measured.begin(), measured.end(), holds);
    to["bound_holds"] = double(within) / double(measured.size());
    if (*sums.mean() > 0) to["bound_slack"] = bound.epsilon / *sums.mean();
  }

  // Every row has a bound of its own, and their mean stands for epsilon.
  void compare_missed(Measured& to, ErrorBound bound) const {
    bound.epsilon = *missed_bounds_.mean();
    compare(to, bound, {}, missed_);
    to["bound_holds"] = double(missed_within_) / double(missed_bounds_.count());
    if (*missed_.mean() > 0) to["bound_slack"] = bound.epsilon / *missed_.mean();
  }

  Wanted wanted_;
  bool keeps_;
  // If bounds or quantiles are wanted: one per pair with nonzero norms, and |tau / Z - 1| of every pair.
  std::vector<double> spectral_, frobenius_, partition_;
  Sums spectral_sums_, frobenius_sums_, additive_, partition_sums_, missed_bounds_, missed_;
  int64_t missed_within_ = 0;
};

}  // namespace

std::unique_ptr<Measure> theorem_errors(const MeasureShape& shape) { return std::make_unique<TheoremErrors>(shape); }

}  // namespace kvreplay
