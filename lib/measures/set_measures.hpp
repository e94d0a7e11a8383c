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
  template <class Real>
  void add(const ScoredRow<Real>& row, size_t at);
  // Of one row: query heads [first, first + count) of the cache's results.
  template <class Real>
  void add_recall(const LaneTile<Real>& lane, int32_t first, int32_t count, int32_t row);
  void finish(CellMeasures& measures) const;
  std::vector<double> take_curve() { return std::move(tau_err_); }

 private:
  template <class Real>
  void add_missed(const ScoredRow<Real>& row);
  template <class Real>
  void add_needles(const ScoredRow<Real>& row);

  std::vector<double> tau_err_;  // [heads, rows], where someone asks
  bool all_plain_ = true;        // every row renormalised the exact attention over a subset
  Sums partition_, log_partition_, mass_, density_;
  Sums mass_recall_, index_recall_;  // of rows
  Sums gap_, bound_;                 // of plain rows
  std::vector<Sums> needles_;        // of the union of the spans, then of each
};

}  // namespace kvreplay
