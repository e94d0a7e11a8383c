#pragma once
#include <vector>

#include "catalog/cell.hpp"
#include "measures/scored_row.hpp"
#include "measures/sums.hpp"

namespace kvreplay {

// Normaliser, mass and sets of one cell (measures.md, section 2).
class SetMeasures {
 public:
  SetMeasures(int32_t heads, int64_t rows, bool curve);
  // at: head * rows + row.
  void add(const ScoredRow& row, size_t at);
  // Of one row, once for its query heads; measures(i) of each of them.
  template <class F>
  void add_recall(int32_t heads, F measures);
  void finish(CellMeasures& measures) const;
  std::vector<double> take_curve() { return std::move(tau_err_); }

 private:
  void add_missed(const ScoredRow& row);
  void add_needles(const ScoredRow& row);

  std::vector<double> tau_err_;  // [heads, rows], where someone asks
  bool all_plain_ = true;        // every row renormalised the exact attention over a subset
  Sums partition_, log_partition_, mass_, density_;
  Sums mass_recall_, index_recall_;  // of rows
  Sums gap_, bound_;                 // of plain rows
  std::vector<Sums> needles_;        // of the union of the spans, then of each
};

// One value a row: heads that decide together share the ranking of their mean probability.
template <class F>
void SetMeasures::add_recall(int32_t heads, F measures) {
  double mass = 0, top = 0, index = 0;
  for (int32_t h = 0; h < heads; ++h) {
    const RowMeasure& m = measures(h);
    if (m.index_recall < 0) return;
    mass += m.kept_mass;
    top += m.top_mass;
    index += m.index_recall;
  }
  if (top > 0) mass_recall_.add(mass / top);
  index_recall_.add(index / heads);
}

}  // namespace kvreplay
