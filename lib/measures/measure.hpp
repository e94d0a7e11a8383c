#pragma once
#include <memory>
#include <span>
#include <vector>

#include "measures/metrics.hpp"
#include "measures/row_result.hpp"

namespace kvreplay {

// One row of a cell as the measures receive it, with derived values.
struct MeasuredRow {
  const RowResult& row;
  const ExactRow& exact;
  std::span<const double> needles;     // see needle_shares; empty without needles
  std::span<const RecallAt> recalls;   // for each k of the shape; empty if none is asked for
  std::span<const float> projections;  // for drawn labels (RowResults); empty if the row has no gradient
  int32_t head;                        // head of the cell
  int64_t number;                      // index of the row among the head's rows
  int32_t v_dim;
  double error, norm;  // ||z - o||, ||o||
  bool skipped;        // ||o|| is too small to divide by
};

struct MeasureShape {
  int32_t heads;  // query heads of the cell (the whole group)
  int64_t rows;   // scored rows in total
  Wanted wanted;
  bool heads_differ = false;           // each query head attends to its own choice of tokens
  std::vector<int32_t> recall_k = {};  // WorkingSetOptions
};

// Reduces the rows of one cell to some of its metrics, pooled over query heads and scored rows (docs/measures.md). Rows
// of a head must be added in order.
class Measure {
 public:
  virtual ~Measure() = default;
  virtual void add(const MeasuredRow& row) = 0;
  virtual void end_row() {}       // called after all heads of a row
  virtual void open_segment() {}  // the next row does not follow the last one
  virtual void finish(Measured& to, const ErrorBound& bound) = 0;
  virtual std::vector<double> take_curve() { return {}; }  // [heads, rows], with Work::curves
};

std::unique_ptr<Measure> output_errors(const MeasureShape& shape);   // section 1
std::unique_ptr<Measure> theorem_errors(const MeasureShape& shape);  // sections 1 and 7
std::unique_ptr<Measure> set_measures(const MeasureShape& shape);    // section 2
std::unique_ptr<Measure> best_tokens(const MeasureShape& shape);     // working sets
std::unique_ptr<Measure> predicted_loss(const MeasureShape& shape);

}  // namespace kvreplay
