#include "measures/row_errors.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

constexpr int64_t kFrobeniusRows = 256;  // rel_err_fro looks at the last rows only

// ||out / weight - exact|| / ||exact||, or nothing where there is neither an output nor a norm.
template <class Real>
void add_side(Sums& sums, const SideOutput<Real>& side, size_t at, const Real* exact, int32_t v_dim) {
  if (!(side.weight[at] > 0)) return;
  const Real* out = side.out.data() + at * size_t(v_dim);
  const double inverse = 1 / side.weight[at];
  double error2 = 0, norm2 = 0;
  for (int32_t c = 0; c < v_dim; ++c) {
    const double o = double(exact[c]), difference = double(out[c]) * inverse - o;
    error2 += difference * difference;
    norm2 += o * o;
  }
  if (norm2 > 0) sums.add(std::sqrt(error2 / norm2));
}

}  // namespace

RowErrors::RowErrors(int32_t heads, int64_t rows, Wanted wanted) : rows_(rows), wanted_(wanted) {
  if (wanted.curves || wanted.quantiles) rel_.resize(size_t(heads) * size_t(rows));
}

template <class Real>
void RowErrors::add(const ScoredRow<Real>& row, int32_t head, int64_t number) {
  const double rel = row.skipped ? -1 : row.error / row.norm;
  if (!rel_.empty()) rel_[size_t(head * rows_ + number)] = rel;
  if (number >= rows_ - kFrobeniusRows) error2_ += row.distance.error2, norm2_ += row.distance.exact2;
  square_.add(row.distance.error2 / row.tile.v_dim);
  skipped_ += row.skipped ? 1 : 0;
  if (row.skipped) return;
  relative_.add(rel);
  if (rows_ >= kParts) quarters_[(kParts * (number + 1) - 1) / rows_].add(rel);
  if (wanted_.details) add_details(row);
  add_sides(row);
}

// z - o = (N - o)/tau' + o (1 - tau')/tau', with N = z tau'.
template <class Real>
void RowErrors::add_details(const ScoredRow<Real>& row) {
  const kernels::Comparison c = row.compare();
  if (c.mine2 > 0) cosine_.add(c.inner / (row.norm * std::sqrt(c.mine2)));
  clamped_.add(row.error / std::sqrt(c.positive2));
  numerator_.add(std::sqrt(c.numerator2) / row.norm / row.m.tau);
  normaliser_.add(std::abs(1 / row.m.tau - 1));
}

template <class Real>
void RowErrors::add_sides(const ScoredRow<Real>& row) {
  const int32_t v_dim = row.tile.v_dim;
  if (!row.lane.prefix.out.empty())
    add_side(prefix_, row.lane.prefix, row.mine, row.tile.prefix_out.data() + int64_t(row.exact) * v_dim,
             v_dim);
  if (!row.lane.has_set) return;
  if (row.m.plain) set_.add(row.error / row.norm);
  else add_side(set_, row.lane.set, row.mine, row.o(), v_dim);
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

template void RowErrors::add(const ScoredRow<float>&, int32_t, int64_t);
template void RowErrors::add(const ScoredRow<double>&, int32_t, int64_t);

}  // namespace kvreplay
