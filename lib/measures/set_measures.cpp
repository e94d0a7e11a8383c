#include "measures/set_measures.hpp"

#include <cmath>
#include <string>

namespace kvreplay {
namespace {

// Below, the gap is a quotient of rounding errors: a normaliser is good to about 1e-6.
constexpr double kMissedAtLeast = 1e-3;

}  // namespace

SetMeasures::SetMeasures(int32_t heads, int64_t rows, bool curve) {
  if (curve) tau_err_.resize(size_t(heads) * size_t(rows));
}

void SetMeasures::add(const ScoredRow& row, size_t at) {
  const double tau_err = std::abs(row.m.tau - 1);
  if (!tau_err_.empty()) tau_err_[at] = tau_err;
  partition_.add(tau_err);
  log_partition_.add(std::abs(row.m.log_tau == kUnset ? std::log(row.m.tau) : row.m.log_tau));
  mass_.add(row.m.kept_mass);
  density_.add(double(row.m.attended) / (row.token + 1));
  all_plain_ = all_plain_ && row.m.plain;
  if (row.m.plain && !row.skipped) add_missed(row);
  if (!row.needles.empty()) add_needles(row);
}

// o - z = missed (o_missed - z), so the gap needs no second output. A sink logit is part of what is kept.
void SetMeasures::add_missed(const ScoredRow& row) {
  const bool all = row.m.attended >= row.visible;  // whatever rounding makes of tau
  const double missed = all ? 0.0 : std::max(0.0, 1 - row.m.tau);
  if (missed > kMissedAtLeast) gap_.add(row.error / missed / row.norm);
  bound_.add(2 * missed * row.v_largest / row.norm);
}

void SetMeasures::add_needles(const ScoredRow& row) {
  needles_.resize(row.needles.size());
  for (size_t i = 0; i < needles_.size(); ++i)
    if (row.needles[i] >= 0) needles_[i].add(row.needles[i]);
}

void SetMeasures::finish(CellMeasures& measures) const {
  measures.partition_err_mean = partition_.mean(), measures.partition_err_max = partition_.maximum();
  measures.log_partition_err_mean = log_partition_.mean();
  measures.kept_mass_mean = mass_.mean(), measures.kept_mass_min = mass_.minimum();
  measures.mass_recall = mass_recall_.mean(), measures.mass_recall_min = mass_recall_.minimum();
  measures.index_recall = index_recall_.mean();
  measures.density_mean = density_.mean();
  if (all_plain_) measures.missed_gap_mean = gap_.mean(), measures.mass_bound_mean = bound_.mean();
  if (needles_.empty()) return;
  measures.needle_mass = needles_[0].mean();
  for (size_t i = 1; i < needles_.size(); ++i)
    if (const auto mean = needles_[i].mean()) measures.extras["needle_mass_" + std::to_string(i)] = *mean;
}

}  // namespace kvreplay
