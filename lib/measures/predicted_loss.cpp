#include "measures/measure.hpp"

// Predicts the model's loss from a cell's errors, to second order. The KL divergence of the model's predictions is half
// the expected square of the error's projection on the gradient of log p(y), with y drawn from the model itself (Fisher
// information; docs/prediction.md).

namespace kvreplay {
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
