#include "measures/exact_rows.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/kernels.hpp"

namespace kvreplay {
namespace {

// ||out / weight - exact|| / ||exact||, or kNone if there is no output or the norm is 0.
template <class Real>
double side_error(const SideOutput<Real>& side, size_t at, const Real* exact, int32_t v_dim) {
  if (!(side.weight[at] > 0)) return RowResult::kNone;
  const Real* out = side.out.data() + at * size_t(v_dim);
  const double inverse = 1 / side.weight[at];
  double error2 = 0, norm2 = 0;
  for (int32_t c = 0; c < v_dim; ++c) {
    const double o = double(exact[c]), difference = double(out[c]) * inverse - o;
    error2 += difference * difference;
    norm2 += o * o;
  }
  return norm2 > 0 ? std::sqrt(error2 / norm2) : RowResult::kNone;
}

template <class Real>
void compare_row(const Tile<Real>& tile, const MeasuredOutputs<Real>& outputs, size_t exact, size_t mine, bool details,
                 RowResults<Real>& results) {
  const int32_t width = outputs.width();
  const Real* const z = results.out.data() + mine * size_t(width);
  const Real* const o = outputs.exact(tile) + exact * size_t(width);
  RowResult& row = results.of[mine];
  const kernels::Distance distance = kernels::distance(z, o, width);
  row.error2 = distance.error2, row.exact2 = distance.exact2;
  if (row.is_compared(details)) {
    const kernels::Comparison c = kernels::compare(z, o, width, row.tau);
    row.mine2 = c.mine2, row.inner = c.inner, row.positive2 = c.positive2, row.numerator2 = c.numerator2;
  }
  if (!results.prefix.out.empty())
    row.prefix_error = side_error(results.prefix, mine, outputs.prefix(tile) + exact * size_t(width), width);
  if (!results.set.out.empty() && !row.plain) row.set_error = side_error(results.set, mine, o, width);
}

}  // namespace

template <class Real>
void MeasuredOutputs<Real>::project(int32_t first_head, int32_t heads, const std::vector<Real>& from,
                                    std::vector<Real>& to) const {
  const int64_t v_dim = stream_.shape.v_dim, rows = int64_t(from.size()) / v_dim / std::max(1, heads);
  to.resize(size_t(heads * rows * width()));
  for (int32_t h = 0; h < heads; ++h)
    kernels::multiply(from.data() + h * rows * v_dim, v_dim, int32_t(rows),
                      stream_.up_values.data() + (first_head + h) * v_dim * width(), int32_t(v_dim), width(),
                      to.data() + h * rows * width(), width(), false);
}

template <class Real>
void MeasuredOutputs<Real>::open(const Tile<Real>& tile) {
  if (!projects()) return;
  project(0, tile.heads, tile.out, out_);
  project(0, tile.heads, tile.prefix_out, prefix_);
}

template <class Real>
void MeasuredOutputs<Real>::project(int32_t first_head, RowResults<Real>& results) {
  if (!projects()) return;
  for (std::vector<Real>* of : {&results.out, &results.prefix.out, &results.set.out}) {
    if (of->empty()) continue;
    project(first_head, results.heads, *of, spare_);
    std::swap(*of, spare_);
  }
  results.v_dim = width();
}

template <class Real>
std::vector<ExactRow> exact_rows(const Tile<Real>& tile, ScoredNorms<Real>& norms) {
  std::vector<ExactRow> rows(size_t(tile.heads) * tile.rows.size());
  for (size_t r = 0; r < tile.rows.size(); ++r) {
    if (tile.scored[r] == 0) continue;
    const std::span<const ValueNorm> of_blocks = norms.at(tile.rows[r]);
    for (int32_t h = 0; h < tile.heads; ++h) {
      const size_t at = size_t(tile.at(h, int32_t(r)));
      const ValueNorm& norm = of_blocks[size_t(h / (tile.heads / tile.blocks))];
      ExactRow& row = rows[at] = ExactRow(tile.rows[r], tile.window);
      row.l2 = tile.l2[at];
      row.log_normaliser = std::log(tile.z[at]) + double(tile.shift[at]);
      row.v_frobenius = norm.frobenius, row.v_operator = norm.spectral, row.v_largest = norm.largest;
    }
  }
  return rows;
}

template <class Real>
void compare_outputs(const Tile<Real>& tile, const MeasuredOutputs<Real>& outputs, int32_t first_head, bool details,
                     RowResults<Real>& results) {
  for (int32_t h = 0; h < results.heads; ++h)
    for (int32_t r = 0; r < results.rows; ++r)
      if (tile.scored[size_t(r)] != 0)
        compare_row(tile, outputs, size_t(tile.at(first_head + h, r)), results.at(h, r), details, results);
}

template <class Real>
void project_errors(const Tile<Real>& tile, const MeasuredOutputs<Real>& outputs, int32_t first_head,
                    const Sensitivity& sensitivity, RowResults<Real>& results) {
  if (sensitivity.empty()) return;
  const size_t samples = size_t(sensitivity.samples), width = size_t(outputs.width());
  results.projections.assign(results.cells() * samples, 0.0f);
  for (int32_t h = 0; h < results.heads; ++h)
    for (int32_t r = 0; r < results.rows; ++r) {
      const uint16_t* const gradient = sensitivity.at(first_head + h, tile.rows[size_t(r)]);
      if (tile.scored[size_t(r)] == 0 || gradient == nullptr) continue;
      const size_t mine = results.at(h, r), exact = size_t(tile.at(first_head + h, r));
      kernels::project(results.out.data() + mine * width, outputs.exact(tile) + exact * width, gradient,
                       sensitivity.samples, outputs.width(), results.projections.data() + mine * samples);
    }
}

template class MeasuredOutputs<float>;
template class MeasuredOutputs<double>;
template void project_errors(const Tile<float>&, const MeasuredOutputs<float>&, int32_t, const Sensitivity&,
                             RowResults<float>&);
template void project_errors(const Tile<double>&, const MeasuredOutputs<double>&, int32_t, const Sensitivity&,
                             RowResults<double>&);
template std::vector<ExactRow> exact_rows(const Tile<float>&, ScoredNorms<float>&);
template std::vector<ExactRow> exact_rows(const Tile<double>&, ScoredNorms<double>&);
template void compare_outputs(const Tile<float>&, const MeasuredOutputs<float>&, int32_t, bool, RowResults<float>&);
template void compare_outputs(const Tile<double>&, const MeasuredOutputs<double>&, int32_t, bool, RowResults<double>&);

}  // namespace kvreplay
