#include "measures/set_measures.hpp"

#include <cmath>
#include <string>

namespace kvreplay {
namespace {

constexpr double kMissedAtLeast = 1e-6;  // below, the gap is a quotient of rounding errors

}  // namespace

SetMeasures::SetMeasures(int32_t heads, int64_t rows, bool curve) {
  if (curve) tau_err_.resize(size_t(heads) * size_t(rows));
}

template <class Real>
void SetMeasures::add(const ScoredRow<Real>& row, size_t at) {
  const double tau_err = std::abs(row.m.tau - 1);
  if (!tau_err_.empty()) tau_err_[at] = tau_err;
  partition_.add(tau_err);
  log_partition_.add(std::abs(row.m.log_tau == kUnset ? std::log(row.m.tau) : row.m.log_tau));
  mass_.add(row.m.kept_mass);
  density_.add(double(row.m.attended) / (row.token + 1));
  all_plain_ = all_plain_ && row.m.plain;
  if (row.m.plain && !row.skipped) add_missed(row);
  if (!row.lane.needles.empty()) add_needles(row);
}

// o - z = missed (o_missed - z), so the gap needs no second output. A sink logit is part of what is kept.
template <class Real>
void SetMeasures::add_missed(const ScoredRow<Real>& row) {
  const double missed = std::max(0.0, 1 - row.m.tau);
  if (missed > kMissedAtLeast) gap_.add(row.error / missed / row.norm);
  bound_.add(2 * missed * row.tile.v_largest[row.values] / row.norm);
}

template <class Real>
void SetMeasures::add_needles(const ScoredRow<Real>& row) {
  const size_t count = row.lane.needles.size() / row.lane.cells();
  needles_.resize(count);
  const double* shares = row.lane.needles.data() + row.mine * count;
  for (size_t i = 0; i < count; ++i)
    if (shares[i] >= 0) needles_[i].add(shares[i]);
}

// One value a row: heads that decide together share the ranking of their mean probability.
template <class Real>
void SetMeasures::add_recall(const LaneTile<Real>& lane, int32_t first, int32_t count, int32_t row) {
  double mass = 0, top = 0, index = 0;
  for (int32_t h = first; h < first + count; ++h) {
    const RowMeasure& m = lane.measures[lane.at(h, row)];
    if (m.index_recall < 0) return;
    mass += m.kept_mass;
    top += m.top_mass;
    index += m.index_recall;
  }
  if (top > 0) mass_recall_.add(mass / top);
  index_recall_.add(index / count);
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

template void SetMeasures::add(const ScoredRow<float>&, size_t);
template void SetMeasures::add(const ScoredRow<double>&, size_t);
template void SetMeasures::add_recall(const LaneTile<float>&, int32_t, int32_t, int32_t);
template void SetMeasures::add_recall(const LaneTile<double>&, int32_t, int32_t, int32_t);

}  // namespace kvreplay
