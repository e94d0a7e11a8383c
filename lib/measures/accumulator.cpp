#include "measures/accumulator.hpp"

#include <algorithm>

namespace kvreplay {

Accumulator::Accumulator(int32_t heads, int64_t rows, double tiny_norm, Wanted wanted)
    : heads_(heads),
      rows_(rows),
      tiny_norm_(tiny_norm),
      wanted_(wanted),
      filled_(size_t(heads), 0),
      errors_(heads, rows, wanted),
      epsilons_(heads, rows, wanted),
      sets_(heads, rows, wanted.curves) {}

template <class Real>
void Accumulator::add(const Tile<Real>& tile, const LaneTile<Real>& lane, const Heads& heads,
                      bool keep_outputs) {
  for (int32_t r = 0; r < lane.rows; ++r) {
    if (tile.scored[size_t(r)] == 0) continue;
    for (int32_t h = 0; h < heads.count; ++h) {
      const int32_t of_lane = heads.lane_head + h;
      const Real* out = lane.out.data() + lane.at(of_lane, r) * size_t(tile.v_dim);
      add(scored_row(tile, lane, heads.tile_head + h, of_lane, r, tiny_norm_, wanted_), heads.own_head + h,
          keep_outputs ? out : nullptr);
    }
    add_recall(heads.count, [&](int32_t h) -> const RowMeasure& {
      return lane.measures[lane.at(heads.lane_head + h, r)];
    });
  }
}

template <class Real>
void Accumulator::add(const ScoredRow& row, int32_t own_head, const Real* out) {
  v_dim_ = row.v_dim;
  if (own_head == 0) tokens_.push_back(row.token);
  const int64_t number = filled_[size_t(own_head)]++;
  const size_t at = size_t(own_head) * size_t(rows_) + size_t(number);
  errors_.add(row, own_head, number);
  epsilons_.add(row);
  if (wanted_.masses) sets_.add(row, at);
  if (out == nullptr) return;
  if (out_.empty()) out_.resize(size_t(heads_) * size_t(rows_) * size_t(v_dim_));
  std::transform(out, out + v_dim_, out_.begin() + int64_t(at) * v_dim_, [](Real x) { return double(x); });
}

void Accumulator::finish(CellMeasures& measures, CellResult& result, const SaveOptions& save,
                         const ErrorBound& error_bound) {
  measures.n_queries = rows_;
  errors_.finish(measures);
  epsilons_.finish(measures, error_bound);
  sets_.finish(measures);
  result.rows = std::move(tokens_);
  result.heads = heads_;
  result.v_dim = v_dim_;
  if (save.curves) result.rel_err = errors_.take_curve(), result.partition_err = sets_.take_curve();
  if (save.outputs) result.out = std::move(out_);
}

template void Accumulator::add(const Tile<float>&, const LaneTile<float>&, const Heads&, bool);
template void Accumulator::add(const Tile<double>&, const LaneTile<double>&, const Heads&, bool);
template void Accumulator::add(const ScoredRow&, int32_t, const float*);
template void Accumulator::add(const ScoredRow&, int32_t, const double*);

}  // namespace kvreplay
