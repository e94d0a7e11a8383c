#pragma once
#include <vector>

#include "catalog/cell.hpp"
#include "measures/scored_row.hpp"
#include "measures/sums.hpp"

namespace kvreplay {

// Errors of the outputs of one cell (measures.md, section 1), pooled over heads and scored rows.
class RowErrors {
 public:
  RowErrors(int32_t heads, int64_t rows);
  // at: head * rows + row. details: everything beyond the error and the sides that are there.
  template <class Real>
  void add(const ScoredRow<Real>& row, size_t at, bool details = true);
  void finish(CellMeasures& measures, bool quantiles = true) const;
  std::vector<double> take_curve() { return std::move(rel_); }

 private:
  template <class Real>
  void add_details(const ScoredRow<Real>& row);
  template <class Real>
  void add_sides(const ScoredRow<Real>& row);
  void finish_quarters(CellMeasures& measures) const;

  int32_t heads_;
  int64_t rows_, skipped_ = 0;
  std::vector<double> rel_;             // [heads, rows]; -1: skipped
  std::vector<double> error2_, norm2_;  // [heads, rows]
  Sums clamped_, cosine_, square_;      // square_: e^2 / dv
  Sums prefix_, set_;                   // of other pairs of outputs
  Sums numerator_, normaliser_;         // the two parts of the error
};

}  // namespace kvreplay
