#include "measures/measure.hpp"

// What the errors of a cell cost the model, to second order: the KL divergence of its predictions is half the
// expected square of the projection of what changes on the gradient of log p(y), y drawn from the model itself
// (Fisher information; docs/prediction.md).

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
  int64_t count_ = 0;  // (head, row) pairs
};

}  // namespace

std::unique_ptr<Measure> predicted_loss(const MeasureShape& shape) { return std::make_unique<PredictedLoss>(shape); }

}  // namespace kvreplay
