#include <cmath>
#include <limits>
#include <string>

#include "measures/measure.hpp"
#include "measures/sums.hpp"

// Normaliser, kept mass and attended sets of a cell.

namespace kvreplay {
namespace {

// With less missed mass the gap is a quotient of rounding errors: a normaliser is accurate to about 1e-6.
constexpr double kMissedAtLeast = 1e-3;

class SetMeasures final : public Measure {
 public:
  explicit SetMeasures(const MeasureShape& shape) : shape_(shape) {
    if (shape.wanted.has(Work::curves)) tau_err_.resize(size_t(shape.heads) * size_t(shape.rows));
  }

  void add(const MeasuredRow& r) override {
    recall_.add(r.row);
    if (!shape_.wanted.has(Work::masses)) return;
    // A coded key may have a logit so large that the ratio exceeds the range of double; its logarithm is still valid.
    const double tau_err = std::min(std::abs(r.row.tau - 1), std::numeric_limits<double>::max());
    overshoots_ = overshoots_ || std::isinf(r.row.tau);
    if (!tau_err_.empty()) tau_err_[size_t(r.head * shape_.rows + r.number)] = tau_err;
    partition_.add(tau_err);
    log_partition_.add(std::abs(r.row.log_tau == kUnset ? std::log(r.row.tau) : r.row.log_tau));
    mass_.add(r.row.kept_mass);
    density_.add(double(r.row.attended) / (r.exact.token + 1));
    all_plain_ = all_plain_ && r.row.plain;
    if (r.row.plain && !r.skipped) add_missed(r);
    needles_.resize(r.needles.size());
    for (size_t i = 0; i < r.needles.size(); ++i)
      if (r.needles[i] >= 0) needles_[i].add(r.needles[i]);
  }

  // One value per row: heads that decide together share the ranking of their mean probability.
  void end_row() override {
    if (recall_.ranked) {
      if (recall_.top > 0) mass_recall_.add(recall_.mass / recall_.top);
      index_recall_.add(recall_.index / recall_.heads);
    }
    recall_ = {};
  }

  void finish(Measured& to, const ErrorBound&) override {
    if (!overshoots_) to["partition_err_mean"] = partition_.mean(), to["partition_err_max"] = partition_.maximum();
    to["log_partition_err_mean"] = log_partition_.mean();
    to["kept_mass_mean"] = mass_.mean(), to["kept_mass_min"] = mass_.minimum();
    to["mass_recall"] = mass_recall_.mean(), to["mass_recall_min"] = mass_recall_.minimum();
    to["index_recall"] = index_recall_.mean();
    to["density_mean"] = density_.mean();
    if (all_plain_) to["missed_gap_mean"] = gap_.mean(), to["mass_bound_mean"] = bound_.mean();
    if (needles_.empty()) return;
    to["needle_mass"] = needles_[0].mean();
    for (size_t i = 1; i < needles_.size(); ++i)
      if (const auto mean = needles_[i].mean()) to.extras["needle_mass_" + std::to_string(i)] = *mean;
  }
  std::vector<double> take_curve() override { return std::move(tau_err_); }

 private:
  // Sums over the heads of one row.
  struct Recall {
    double mass = 0, top = 0, index = 0;
    int32_t heads = 0;
    bool ranked = true;
    void add(const RowResult& row) {
      ranked = ranked && row.index_recall >= 0;
      mass += row.kept_mass, top += row.top_mass, index += row.index_recall;
      ++heads;
    }
  };

  // o - z = missed (o_missed - z), so the gap needs no second output. A sink logit counts as kept.
  void add_missed(const MeasuredRow& r) {
    const bool all = r.row.attended >= r.exact.visible;  // independent of tau's rounding
    const double missed = all ? 0.0 : std::max(0.0, 1 - r.row.tau);
    if (missed > kMissedAtLeast) gap_.add(r.error / missed / r.norm);
    bound_.add(2 * missed * r.exact.v_largest / r.norm);
  }

  MeasureShape shape_;
  std::vector<double> tau_err_;  // [heads, rows], if curves are wanted
  bool overshoots_ = false;      // a denominator is more than 1e308 times the exact one
  bool all_plain_ = true;        // every row is exact attention over a subset, renormalised
  Recall recall_;
  Sums partition_, log_partition_, mass_, density_;
  Sums mass_recall_, index_recall_;  // one value per row
  Sums gap_, bound_;                 // plain rows only
  std::vector<Sums> needles_;        // the union of the spans, then each span
};

}  // namespace

std::unique_ptr<Measure> set_measures(const MeasureShape& shape) { return std::make_unique<SetMeasures>(shape); }

}  // namespace kvreplay
