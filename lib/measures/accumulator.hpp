#pragma once
#include <cstdint>
#include <vector>

#include "catalog/cell.hpp"
#include "measures/row_measure.hpp"

namespace kvreplay {

// Collects the errors of one cell, row by row, and reduces them as measures.md says: pooled over the
// query heads of the group and the scored rows.
class Accumulator {
 public:
  // heads: query heads of the cell (the whole group); rows: scored rows in total.
  Accumulator(int32_t heads, int64_t rows, double tiny_norm);
  // Rows of one tile: `count` query heads, found from lane_head in the cache's results, from tile_head in the
  // exact ones, and from own_head in this cell's group.
  struct Heads {
    int32_t lane_head, tile_head, own_head, count;
  };
  template <class Real>
  void add(const Tile<Real>& tile, const LaneTile<Real>& lane, const Heads& heads, bool keep_outputs);
  // Everything but sizes, bytes and times. Moves the curves and outputs that were kept.
  void finish(CellMeasures& measures, CellResult& result, const SaveOptions& save);

 private:
  struct Sums {
    double sum = 0, most = 0;
    int64_t count = 0;
    void add(double x);
    std::optional<double> mean() const;
    std::optional<double> maximum() const;
  };
  template <class Real>
  void add_row(const Tile<Real>& tile, const LaneTile<Real>& lane, const Heads& heads, int32_t head,
               int32_t row, bool keep_output);
  template <class Real>
  void add_recalls(const Tile<Real>& tile, const LaneTile<Real>& lane, const Heads& heads);

  int32_t heads_;
  int64_t rows_, skipped_ = 0;
  double tiny_norm_;
  std::vector<int64_t> filled_;              // [heads] rows so far
  std::vector<double> rel_, tau_err_, out_;  // [heads, rows], [heads, rows, v_dim]
  std::vector<double> error2_, norm2_;       // [heads, rows] for the ratio of norms
  std::vector<int32_t> tokens_;              // of head 0's rows
  int32_t v_dim_ = 0;
  Sums cosine_, spectral_, frobenius_, partition_, mass_, mass_recall_, index_recall_;
};

// Linear interpolation between order statistics, numpy's default. `values` is sorted in place.
double quantile(std::vector<double>& values, double q);

}  // namespace kvreplay
