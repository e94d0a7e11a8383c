#pragma once
#include <vector>

#include "catalog/cell.hpp"
#include "measures/scored_row.hpp"
#include "measures/sums.hpp"
#include "measures/wanted.hpp"

namespace kvreplay {

// Errors of the outputs of one cell (measures.md, section 1), pooled over heads and scored rows.
class RowErrors {
 public:
  RowErrors(int32_t heads, int64_t rows, Wanted wanted);
  // Rows of a head come in order.
  void add(const ScoredRow& row, int32_t head, int64_t number);
  void finish(CellMeasures& measures) const;
  std::vector<double> take_curve() { return std::move(rel_); }

 private:
  void add_details(const ScoredRow& row);
  void add_sides(const ScoredRow& row);

  static constexpr int64_t kParts = 4;  // of the scored rows
  int64_t rows_, skipped_ = 0;
  Wanted wanted_;
  std::vector<double> rel_;        // [heads, rows], where someone asks; -1: skipped
  double error2_ = 0, norm2_ = 0;  // of the last rows
  Sums relative_, quarters_[kParts];
  Sums clamped_, cosine_, square_;  // square_: e^2 / dv
  Sums prefix_, set_;               // of other pairs of outputs
  Sums numerator_, normaliser_;     // the two parts of the error
};

}  // namespace kvreplay
