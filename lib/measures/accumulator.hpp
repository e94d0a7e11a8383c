#pragma once
#include <cstdint>
#include <vector>

#include "measures/epsilon_forms.hpp"
#include "measures/row_errors.hpp"
#include "measures/set_measures.hpp"
#include "measures/wanted.hpp"

namespace kvreplay {

// Collects the errors of one cell, row by row, and reduces them as measures.md says: pooled over the
// query heads of the group and the scored rows. What is measured stands in row_errors, epsilon_forms and
// set_measures.
class Accumulator {
 public:
  // heads: query heads of the cell (the whole group); rows: scored rows in total.
  Accumulator(int32_t heads, int64_t rows, double tiny_norm, Wanted wanted = {});
  // Rows of one tile: `count` query heads, found from lane_head in the cache's results, from tile_head in the
  // exact ones, and from own_head in this cell's group.
  struct Heads {
    int32_t lane_head, tile_head, own_head, count;
  };
  template <class Real>
  void add(const Tile<Real>& tile, const LaneTile<Real>& lane, const Heads& heads, bool keep_outputs);
  // The same from elsewhere: rows of a head come in order; out: [v_dim], where outputs are kept.
  template <class Real>
  void add(const ScoredRow& row, int32_t own_head, const Real* out);
  // Of one row, before or after its heads.
  template <class F>
  void add_recall(int32_t heads, F measures) {
    sets_.add_recall(heads, measures);
  }
  // Everything but sizes, bytes and times. Moves the curves and outputs that were kept.
  void finish(CellMeasures& measures, CellResult& result, const SaveOptions& save,
              const ErrorBound& error_bound);

 private:
  int32_t heads_;
  int64_t rows_;
  double tiny_norm_;
  Wanted wanted_;
  std::vector<int64_t> filled_;  // [heads] rows so far
  std::vector<double> out_;      // [heads, rows, v_dim]
  std::vector<int32_t> tokens_;  // of head 0's rows
  int32_t v_dim_ = 0;
  RowErrors errors_;
  EpsilonForms epsilons_;
  SetMeasures sets_;
};

}  // namespace kvreplay
