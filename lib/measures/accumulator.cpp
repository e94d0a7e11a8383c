#include "measures/accumulator.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvreplay {
namespace {

constexpr int64_t kFrobeniusRows = 256;  // rel_err_fro looks at the last rows only

template <class Real>
struct Comparison {
  double error2 = 0, exact2 = 0, mine2 = 0, inner = 0;
  Comparison(const Real* mine, const Real* exact, int32_t n) {
    for (int32_t c = 0; c < n; ++c) {
      const double z = double(mine[c]), o = double(exact[c]);
      error2 += (z - o) * (z - o);
      exact2 += o * o;
      mine2 += z * z;
      inner += z * o;
    }
  }
};

}  // namespace

double quantile(std::vector<double>& values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * double(values.size() - 1);
  const size_t low = size_t(at), high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - double(low)) * (values[high] - values[low]);
}

void Accumulator::Sums::add(double x) {
  most = count == 0 ? x : std::max(most, x);
  sum += x;
  ++count;
}
std::optional<double> Accumulator::Sums::mean() const {
  return count > 0 ? std::optional(sum / double(count)) : std::nullopt;
}
std::optional<double> Accumulator::Sums::maximum() const {
  return count > 0 ? std::optional(most) : std::nullopt;
}

Accumulator::Accumulator(int32_t heads, int64_t rows, double tiny_norm)
    : heads_(heads), rows_(rows), tiny_norm_(tiny_norm), filled_(size_t(heads), 0) {
  const size_t cells = size_t(heads) * size_t(rows);
  rel_.resize(cells), tau_err_.resize(cells), error2_.resize(cells), norm2_.resize(cells);
}

template <class Real>
void Accumulator::add(const Tile<Real>& tile, const LaneTile<Real>& lane, const Heads& heads,
                      bool keep_outputs) {
  v_dim_ = tile.v_dim;
  if (keep_outputs) out_.resize(rel_.size() * size_t(v_dim_));
  for (int32_t r = 0; r < lane.rows; ++r) {
    if (tile.scored[size_t(r)] == 0) continue;
    if (heads.own_head == 0) tokens_.push_back(tile.rows[size_t(r)]);
    for (int32_t h = 0; h < heads.count; ++h) add_row(tile, lane, heads, h, r, keep_outputs);
  }
  add_recalls(tile, lane, heads);
}

template <class Real>
void Accumulator::add_row(const Tile<Real>& tile, const LaneTile<Real>& lane, const Heads& heads,
                          int32_t head, int32_t row, bool keep_output) {
  const size_t exact = size_t(tile.at(heads.tile_head + head, row)),
               mine = lane.at(heads.lane_head + head, row);
  const size_t own = size_t(heads.own_head + head);
  const size_t block = size_t((heads.tile_head + head) / (tile.heads / tile.blocks)) * tile.rows.size();
  const Real* z = lane.out.data() + int64_t(mine) * tile.v_dim;
  const Comparison<Real> c(z, tile.out.data() + int64_t(exact) * tile.v_dim, tile.v_dim);
  const RowMeasure& m = lane.measures[mine];
  const size_t at = own * size_t(rows_) + size_t(filled_[own]++);
  const double error = std::sqrt(c.error2), norm = std::sqrt(c.exact2);
  const bool skipped = norm < tiny_norm_;
  skipped_ += skipped ? 1 : 0;
  rel_[at] = skipped ? -1 : error / norm;
  tau_err_[at] = std::abs(m.tau - 1);
  error2_[at] = c.error2;
  norm2_[at] = c.exact2;
  if (keep_output)
    std::transform(z, z + tile.v_dim, out_.begin() + int64_t(at) * tile.v_dim,
                   [](Real x) { return double(x); });
  if (!skipped && c.mine2 > 0) cosine_.add(c.inner / (norm * std::sqrt(c.mine2)));
  const double l2 = tile.l2[exact], v_op = tile.v_operator[block + size_t(row)],
               v_fro = tile.v_frobenius[block + size_t(row)];
  if (l2 * v_op > 0) spectral_.add(error / (l2 * v_op)), frobenius_.add(error / (l2 * v_fro));
  partition_.add(tau_err_[at]);
  mass_.add(m.kept_mass);
}

// One value a row: heads that decide together share the ranking of their mean probability.
template <class Real>
void Accumulator::add_recalls(const Tile<Real>& tile, const LaneTile<Real>& lane, const Heads& heads) {
  for (int32_t r = 0; r < lane.rows; ++r) {
    if (tile.scored[size_t(r)] == 0) continue;
    double mass = 0, top = 0, index = 0;
    for (int32_t h = heads.lane_head; h < heads.lane_head + heads.count; ++h) {
      const RowMeasure& m = lane.measures[lane.at(h, r)];
      if (m.index_recall < 0) return;
      mass += m.kept_mass;
      top += m.top_mass;
      index += m.index_recall;
    }
    if (top > 0) mass_recall_.add(mass / top);
    index_recall_.add(index / heads.count);
  }
}

void Accumulator::finish(CellMeasures& measures, CellResult& result, const SaveOptions& save) {
  measures.n_queries = rows_;
  measures.rows_skipped = skipped_;
  std::vector<double> rel;
  rel.reserve(rel_.size());
  std::copy_if(rel_.begin(), rel_.end(), std::back_inserter(rel), [](double x) { return x >= 0; });
  if (!rel.empty()) {
    measures.rel_err_out_mean = std::accumulate(rel.begin(), rel.end(), 0.0) / double(rel.size());
    measures.rel_err_out_max = *std::max_element(rel.begin(), rel.end());
    measures.rel_err_out_p50 = quantile(rel, 0.5);
    measures.rel_err_out_p95 = quantile(rel, 0.95);
  }
  double error2 = 0, norm2 = 0;
  for (int32_t h = 0; h < heads_; ++h)
    for (int64_t r = std::max<int64_t>(0, rows_ - kFrobeniusRows); r < rows_; ++r) {
      error2 += error2_[size_t(h * rows_ + r)];
      norm2 += norm2_[size_t(h * rows_ + r)];
    }
  if (norm2 > 0) measures.rel_err_fro = std::sqrt(error2 / norm2);
  measures.cosine_mean = cosine_.mean();
  measures.eps_spectral_mean = spectral_.mean(), measures.eps_spectral_max = spectral_.maximum();
  measures.eps_frobenius_mean = frobenius_.mean(), measures.eps_frobenius_max = frobenius_.maximum();
  measures.partition_err_mean = partition_.mean(), measures.partition_err_max = partition_.maximum();
  measures.kept_mass_mean = mass_.mean();
  measures.mass_recall = mass_recall_.mean();
  measures.index_recall = index_recall_.mean();
  result.rows = std::move(tokens_);
  result.heads = heads_;
  result.v_dim = v_dim_;
  if (save.curves) result.rel_err = std::move(rel_), result.partition_err = std::move(tau_err_);
  if (save.outputs) result.out = std::move(out_);
}

template void Accumulator::add(const Tile<float>&, const LaneTile<float>&, const Heads&, bool);
template void Accumulator::add(const Tile<double>&, const LaneTile<double>&, const Heads&, bool);

}  // namespace kvreplay
