#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "measures/measure.hpp"
#include "measures/metrics.hpp"
#include "measures/segment_errors.hpp"

namespace kvreplay {

// Lists of the tokens that a cell held. Filled only if the run was asked to save them.
struct TokensHeld {
  TokenLists kept, attended;
  std::vector<double> num, den;  // weights of the kept lists; empty if all are 1
};

// Gradients that a row's error is projected on: for drawn labels first, then that of the recorded tokens, if there is
// one, then that of the recorded answer.
struct Projected {
  int32_t samples = 0, drawn = 0;
  bool answer = false;
  bool recorded() const { return samples > drawn + (answer ? 1 : 0); }
};

// Result of replaying one cell.
struct CellResult : TokensHeld {
  Measured measures;
  int64_t n_queries = 0;  // scored decode rows
  bool ok = true;
  std::string error;  // reason of a failure
  bool lost = false;  // its head could not be read, or it got no share of a budget
  // Filled only if the run was asked to save it; [heads, rows(, v_dim)], row-major.
  std::vector<int32_t> rows;  // token index of each scored row
  int32_t heads = 0, v_dim = 0;
  Projected projected;
  bool double_precision = false, oneshot = false;
  bool on_cpu = true;  // false: a device computed the rows
  std::vector<double> rel_err, partition_err, out;
  std::vector<float> projections;                        // [heads, rows, projected.samples], see RowResults
  std::vector<float> distances;                          // [heads, rows]: cosine distances, saved with projections
  std::vector<std::pair<int32_t, TokensHeld>> branches;  // the lists of each branch, in place of those above
  TokenLists after_prompt;              // SaveOptions::consensus: the tokens of each cache at the end of the prompt
  int32_t prompt = 0;                   // length of the prompt
  std::vector<int32_t> needle_tokens;   // those of replay.needles
  std::vector<SegmentResult> segments;  // with turns or branches
  // attends: a step attends to the list after it; otherwise to the list before it and its own token. partial: lists and
  // weights do not describe completely what a step attends to.
  bool attends = false, partial = false;
};

// Further data of a row. A span without data is empty.
template <class Real>
struct RowParts {
  std::span<const double> needles;
  std::span<const RecallAt> recalls;
  std::span<const float> projections;  // see RowResults
  Projected projected;
  int32_t v_dim;
  const Real* out;  // [v_dim]; null unless outputs are saved
};

// Collects the rows of one cell and reduces them to metrics (docs/measures.md).
class Accumulator {
 public:
  // tiny_norm: an output whose norm is not above this is counted, not divided by. save: data of rows to keep.
  Accumulator(const MeasureShape& shape, double tiny_norm, const SaveOptions& save);
  // Rows of a head must be added in order.
  template <class Real>
  void add(const RowResult& row, const ExactRow& exact, int32_t head, const RowParts<Real>& parts);
  void end_row();  // call after all heads of a row were added
  // With turns: the rows that follow belong to this segment.
  void open_segment(const SegmentStart& start);
  // Writes all metrics except sizes, bytes and times. Moves out the curves and outputs that were kept.
  void finish(CellResult& result, const ErrorBound& bound);

 private:
  void keep_projections(size_t at, const RowResult& row, std::span<const float> projections,
                        const Projected& projected);
  int32_t heads_, v_dim_ = 0;
  Projected projected_;
  int64_t rows_;
  double tiny_norm_;
  SaveOptions save_;
  std::array<Measure*, 5> all() const {
    return {outputs_.get(), theorems_.get(), sets_.get(), best_.get(), loss_.get()};
  }
  SegmentErrors segments_;
  std::unique_ptr<Measure> outputs_, theorems_, sets_, best_, loss_;
  std::vector<int64_t> filled_;     // [heads], number of rows so far
  std::vector<double> out_;         // [heads, rows, v_dim]
  std::vector<float> projections_;  // [heads, rows, samples]
  std::vector<float> distances_;    // [heads, rows]
  std::vector<int32_t> tokens_;     // token of each row, taken from head 0
};

}  // namespace kvreplay
