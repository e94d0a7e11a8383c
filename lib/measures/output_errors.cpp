#include <algorithm>
#include <cmath>

#include "measures/measure.hpp"
#include "measures/sums.hpp"

// Errors of a cell's outputs.

namespace kvreplay {

namespace {

constexpr int64_t kFrobeniusRows = 256;  // rel_err_fro uses only the last rows
constexpr int64_t kQuarters = 4;         // parts of the scored rows

class OutputErrors final : public Measure {
 public:
  explicit OutputErrors(const MeasureShape& shape) : shape_(shape) {
    if (shape.wanted.has(Work::curves | Work::quantiles))
      relative_of_row_.resize(size_t(shape.heads) * size_t(shape.rows));
  }

  void add(const MeasuredRow& r) override {
    const double relative = r.skipped ? -1 : r.error / r.norm;
    if (!relative_of_row_.empty()) relative_of_row_[size_t(r.head * shape_.rows + r.number)] = relative;
    if (r.number >= shape_.rows - kFrobeniusRows) error2_ += r.row.error2, norm2_ += r.row.exact2;
    square_.add(r.row.error2 / r.v_dim);
    skipped_ += r.skipped ? 1 : 0;
    if (r.skipped) return;
    relative_.add(relative);
    if (shape_.rows >= kQuarters) quarters_[(kQuarters * (r.number + 1) - 1) / shape_.rows].add(relative);
    if (shape_.wanted.has(Work::details)) add_details(r);
    if (r.row.prefix_error >= 0) prefix_.add(r.row.prefix_error);
    if (!shape_.wanted.has(Work::set_error)) return;
    if (r.row.plain) set_.add(relative);
    else if (r.row.set_error >= 0) set_.add(r.row.set_error);
  }

  void finish(Measured& to, const ErrorBound&) override {
    to["rows_skipped"] = double(skipped_);
    to["rel_err_out_mean"] = relative_.mean(), to["rel_err_out_max"] = relative_.maximum();
    if (shape_.wanted.has(Work::quantiles) && relative_.count() > 0) {
      std::vector<double> some;
      std::copy_if(relative_of_row_.begin(), relative_of_row_.end(), std::back_inserter(some),
                   [](double x) { return x >= 0; });
      to["rel_err_out_p50"] = quantile(some, 0.5), to["rel_err_out_p95"] = quantile(some, 0.95);
    }
    if (norm2_ > 0) to["rel_err_fro"] = std::sqrt(error2_ / norm2_);
    to["cosine_mean"] = cosine_.mean();
    to["cosine_distance_sq"] = distance2_.mean();
    to["rel_err_clamped"] = clamped_.mean();
    if (const auto square = square_.mean()) to["rmse"] = std::sqrt(*square);
    to["rel_err_prefix_mean"] = prefix_.mean();
    to["rel_err_set_mean"] = set_.mean();
    to["rel_err_numerator_mean"] = numerator_.finite_mean();
    to["rel_err_normaliser_mean"] = normaliser_.finite_mean();
    to["rel_err_quarter_1"] = quarters_[0].mean(), to["rel_err_quarter_2"] = quarters_[1].mean();
    to["rel_err_quarter_3"] = quarters_[2].mean(), to["rel_err_quarter_4"] = quarters_[3].mean();
  }
  std::vector<double> take_curve() override { return std::move(relative_of_row_); }

 private:
  // z - o = (N - o)/tau' + o (1 - tau')/tau', with N = z tau'.
  void add_details(const MeasuredRow& r) {
    if (r.row.mine2 > 0) {
      const double found = cosine(r.row);
      cosine_.add(found), distance2_.add((1 - found) * (1 - found));
    }
    clamped_.add(r.error / std::sqrt(r.row.positive2));
    numerator_.add(std::sqrt(r.row.numerator2) / r.norm / r.row.tau);
    normaliser_.add(std::abs(1 / r.row.tau - 1));
  }

  MeasureShape shape_;
  int64_t skipped_ = 0;
  std::vector<double> relative_of_row_;  // [heads, rows], if curves or quantiles are wanted; -1: skipped
  double error2_ = 0, norm2_ = 0;        // sums over the last rows
  Sums relative_, quarters_[kQuarters];
  Sums clamped_, cosine_, distance2_, square_;  // square_: e^2 / dv
  Sums prefix_, set_;                           // errors of other pairs of outputs
  Sums numerator_, normaliser_;                 // the two parts of the error
};

}  // namespace

std::unique_ptr<Measure> output_errors(const MeasureShape& shape) { return std::make_unique<OutputErrors>(shape); }

// Predicts the model's loss from a cell's errors, to second order. The KL divergence of the model's predictions is half
// the expected square of the error's projection on the gradient of log p(y), with y drawn from the model itself (Fisher
// information; docs/prediction.md).

namespace {

class PredictedLoss final : public Measure {
 public:
  explicit PredictedLoss(const MeasureShape& shape) : heads_(shape.heads) {}

  void add(const MeasuredRow& r) override {
    if (r.projections.empty()) return;
    double squares = 0;
    for (const float a : r.projections) squares += double(a) * double(a);
    squares_ += squares / double(r.projections.size());
    ++count_;
  }

  void finish(Measured& to, const ErrorBound&) override {
    if (count_ > 0) to["kl_head_mean"] = 0.5 * squares_ * heads_ / double(count_);
  }

 private:
  int32_t heads_;
  double squares_ = 0;
  int64_t count_ = 0;  // number of (head, row) pairs
};

}  // namespace

std::unique_ptr<Measure> predicted_loss(const MeasureShape& shape) { return std::make_unique<PredictedLoss>(shape); }

}  // namespace kvreplay
