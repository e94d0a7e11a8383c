#pragma once
#include <memory>
#include <span>
#include <vector>

#include "measures/cell_result.hpp"
#include "measures/measure.hpp"

namespace kvreplay {

// Collects the rows of one cell and reduces them as measures.md says.
class Accumulator {
 public:
  // heads: query heads of the cell (the whole group); rows: scored rows in total; tiny_norm: outputs below it are
  // counted, not divided by.
  Accumulator(int32_t heads, int64_t rows, double tiny_norm, Wanted wanted);
  // Rows of a head come in order. out: [v_dim], where outputs are kept, else null.
  template <class Real>
  void add(const RowResult& row, const ExactRow& exact, int32_t head, std::span<const double> needles, int32_t v_dim,
           const Real* out);
  void end_row();  // all heads of a row have come
  // Everything but sizes, bytes and times. Moves the curves and outputs that were kept.
  void finish(CellResult& result, const SaveOptions& save, const ErrorBound& bound);

 private:
  int32_t heads_, v_dim_ = 0;
  int64_t rows_;
  double tiny_norm_;
  std::unique_ptr<Measure> outputs_, theorems_, sets_;
  std::vector<int64_t> filled_;  // [heads] rows so far
  std::vector<double> out_;      // [heads, rows, v_dim]
  std::vector<int32_t> tokens_;  // of head 0's rows
};

}  // namespace kvreplay
