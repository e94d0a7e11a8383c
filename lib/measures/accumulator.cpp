#include "measures/accumulator.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {

Accumulator::Accumulator(const MeasureShape& shape, double tiny_norm, const SaveOptions& save)
    : heads_(shape.heads),
      rows_(shape.rows),
      tiny_norm_(tiny_norm),
      save_(save),
      outputs_(output_errors(shape)),
      theorems_(theorem_errors(shape)),
      sets_(set_measures(shape)),
      best_(best_tokens(shape)),
      loss_(predicted_loss(shape)),
      filled_(size_t(shape.heads), 0) {}

template <class Real>
void Accumulator::add(const RowResult& row, const ExactRow& exact, int32_t head, const RowParts<Real>& parts) {
  v_dim_ = parts.v_dim;
  if (head == 0) tokens_.push_back(exact.token);
  const int64_t number = filled_[size_t(head)]++;
  const double norm = std::sqrt(row.exact2);
  const MeasuredRow measured{row,
                             exact,
                             parts.needles,
                             parts.recalls,
                             parts.projections.first(parts.projections.empty() ? 0 : size_t(parts.projected.drawn)),
                             head,
                             number,
                             parts.v_dim,
                             std::sqrt(row.error2),
                             norm,
                             norm <= tiny_norm_};
  for (Measure* measure : all()) measure->add(measured);
  segments_.add(measured);
  const size_t at = size_t(head * rows_ + number);
  if (save_.projections) keep_projections(at, row, parts.projections, parts.projected);
  if (!save_.outputs) return;
  const size_t width = size_t(parts.v_dim);
  if (out_.empty()) out_.resize(size_t(heads_) * size_t(rows_) * width);
  std::transform(parts.out, parts.out + width, out_.begin() + int64_t(at * width), [](Real x) { return double(x); });
}

void Accumulator::keep_projections(size_t at, const RowResult& row, std::span<const float> projections,
                                   const Projected& projected) {
  const size_t samples = size_t(projected.samples);
  projected_ = projected;
  distances_.resize(size_t(heads_) * size_t(rows_));
  distances_[at] = float(1 - cosine(row));
  projections_.resize(size_t(heads_) * size_t(rows_) * samples);
  std::copy(projections.begin(), projections.end(), projections_.begin() + int64_t(at * samples));
}

void Accumulator::end_row() {
  for (Measure* measure : all()) measure->end_row();
}
void Accumulator::open_segment(const SegmentStart& start) {
  for (Measure* measure : all()) measure->open_segment();
  segments_.open(start);
}

void Accumulator::finish(CellResult& result, const ErrorBound& bound) {
  result.n_queries = rows_;
  for (Measure* measure : all()) measure->finish(result.measures, bound);
  result.segments = segments_.finish(result.measures);
  result.rows = std::move(tokens_);
  result.heads = heads_;
  result.v_dim = v_dim_;
  result.projected = projected_;
  if (save_.curves) result.rel_err = outputs_->take_curve(), result.partition_err = sets_->take_curve();
  result.out = std::move(out_);
  result.projections = std::move(projections_), result.distances = std::move(distances_);
}

template void Accumulator::add(const RowResult&, const ExactRow&, int32_t, const RowParts<float>&);
template void Accumulator::add(const RowResult&, const ExactRow&, int32_t, const RowParts<double>&);

}  // namespace kvreplay
