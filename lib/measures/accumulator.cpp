#include "measures/accumulator.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {

Accumulator::Accumulator(int32_t heads, int64_t rows, double tiny_norm, Wanted wanted)
    : heads_(heads),
      rows_(rows),
      tiny_norm_(tiny_norm),
      outputs_(output_errors({heads, rows, wanted})),
      theorems_(theorem_errors({heads, rows, wanted})),
      sets_(set_measures({heads, rows, wanted})),
      filled_(size_t(heads), 0) {}

template <class Real>
void Accumulator::add(const RowResult& row, const ExactRow& exact, int32_t head, std::span<const double> needles,
                      int32_t v_dim, const Real* out) {
  v_dim_ = v_dim;
  if (head == 0) tokens_.push_back(exact.token);
  const int64_t number = filled_[size_t(head)]++;
  const double norm = std::sqrt(row.exact2);
  const MeasuredRow measured{row, exact, needles, head, number, v_dim, std::sqrt(row.error2), norm, norm <= tiny_norm_};
  outputs_->add(measured);
  theorems_->add(measured);
  sets_->add(measured);
  if (out == nullptr) return;
  if (out_.empty()) out_.resize(size_t(heads_) * size_t(rows_) * size_t(v_dim));
  const int64_t at = head * rows_ + number;
  std::transform(out, out + v_dim, out_.begin() + at * v_dim, [](Real x) { return double(x); });
}

void Accumulator::end_row() { sets_->end_row(); }

void Accumulator::finish(CellResult& result, const SaveOptions& save, const ErrorBound& bound) {
  result.n_queries = rows_;
  for (Measure* measure : {outputs_.get(), theorems_.get(), sets_.get()}) measure->finish(result.measures, bound);
  result.rows = std::move(tokens_);
  result.heads = heads_;
  result.v_dim = v_dim_;
  if (save.curves) result.rel_err = outputs_->take_curve(), result.partition_err = sets_->take_curve();
  if (save.outputs) result.out = std::move(out_);
}

template void Accumulator::add(const RowResult&, const ExactRow&, int32_t, std::span<const double>, int32_t,
                               const float*);
template void Accumulator::add(const RowResult&, const ExactRow&, int32_t, std::span<const double>, int32_t,
                               const double*);

}  // namespace kvreplay
