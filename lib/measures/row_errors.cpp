#include "measures/row_errors.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

constexpr int64_t kFrobeniusRows = 256;  // rel_err_fro looks at the last rows only

}  // namespace

RowErrors::RowErrors(int32_t heads, int64_t rows, Wanted wanted) : rows_(rows), wanted_(wanted) {
  if (wanted.curves || wanted.quantiles) rel_.resize(size_t(heads) * size_t(rows));
}

void RowErrors::add(const ScoredRow& row, int32_t head, int64_t number) {
  const double rel = row.skipped ? -1 : row.error / row.norm;
  if (!rel_.empty()) rel_[size_t(head * rows_ + number)] = rel;
  if (number >= rows_ - kFrobeniusRows) error2_ += row.distance.error2, norm2_ += row.distance.exact2;
  square_.add(row.distance.error2 / row.v_dim);
  skipped_ += row.skipped ? 1 : 0;
  if (row.skipped) return;
  relative_.add(rel);
  if (rows_ >= kParts) quarters_[(kParts * (number + 1) - 1) / rows_].add(rel);
  if (wanted_.details) add_details(row);
  add_sides(row);
}

// z - o = (N - o)/tau' + o (1 - tau')/tau', with N = z tau'.
void RowErrors::add_details(const ScoredRow& row) {
  const kernels::Comparison& c = row.comparison;
  if (c.mine2 > 0) cosine_.add(c.inner / (row.norm * std::sqrt(c.mine2)));
  clamped_.add(row.error / std::sqrt(c.positive2));
  numerator_.add(std::sqrt(c.numerator2) / row.norm / row.m.tau);
  normaliser_.add(std::abs(1 / row.m.tau - 1));
}

void RowErrors::add_sides(const ScoredRow& row) {
  if (row.prefix_error >= 0) prefix_.add(row.prefix_error);
  if (row.has_set && row.m.plain) set_.add(row.error / row.norm);
  else if (row.set_error >= 0) set_.add(row.set_error);
}

void RowErrors::finish(CellMeasures& measures) const {
  measures.rows_skipped = skipped_;
  measures.rel_err_out_mean = relative_.mean(), measures.rel_err_out_max = relative_.maximum();
  if (wanted_.quantiles && relative_.count() > 0) {
    std::vector<double> rel;
    std::copy_if(rel_.begin(), rel_.end(), std::back_inserter(rel), [](double x) { return x >= 0; });
    measures.rel_err_out_p50 = quantile(rel, 0.5), measures.rel_err_out_p95 = quantile(rel, 0.95);
  }
  if (norm2_ > 0) measures.rel_err_fro = std::sqrt(error2_ / norm2_);
  measures.cosine_mean = cosine_.mean();
  measures.rel_err_clamped = clamped_.mean();
  if (const auto square = square_.mean()) measures.rmse = std::sqrt(*square);
  measures.rel_err_prefix_mean = prefix_.mean();
  measures.rel_err_set_mean = set_.mean();
  measures.rel_err_numerator_mean = numerator_.finite_mean();
  measures.rel_err_normaliser_mean = normaliser_.finite_mean();
  for (size_t part = 0; part < size_t(kParts); ++part)
    measures.rel_err_quarters[part] = quarters_[part].mean();
}

}  // namespace kvreplay
