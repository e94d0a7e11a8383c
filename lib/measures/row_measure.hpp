#pragma once
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "core/attend.hpp"
#include "exact/tile.hpp"
#include "measures/needles.hpp"

namespace kvreplay {

// What one (query head, row) of a cache says about the exact row (measures.md, section 2).
struct RowMeasure {
  double tau = 0;           // the method's denominator / the exact one
  double log_tau = kUnset;  // its logarithm, where the ratio itself may not be a double
  double kept_mass = 0;     // exact probability of the attended tokens
  double top_mass = -1;     // the most that as many tokens can hold; negative: not ranked
  double index_recall = -1;
  double spread = kUnset;  // ErrorBound::spread at this row
  int32_t attended = 0;    // attended tokens
  bool plain = false;      // the output renormalises the exact attention over the attended tokens
};

// Another output of the same rows: sums [v_dim] over a part of the coefficients, and what they are divided
// by.
template <class Real>
struct SideOutput {
  std::vector<Real> out;       // [heads, rows, v_dim]; empty: nobody asks
  std::vector<double> weight;  // [heads, rows]; 0: nothing there
  void resize(size_t cells, int32_t v_dim) {
    out.assign(cells * size_t(v_dim), Real(0));
    weight.assign(cells, 0.0);
  }
};

// What one cache gives for the rows of a tile. Only scored rows are filled.
template <class Real>
struct LaneTile {
  int32_t heads = 0, rows = 0, v_dim = 0;
  std::vector<Real> out;             // [heads, rows, v_dim]
  std::vector<RowMeasure> measures;  // [heads, rows]
  SideOutput<Real> prefix;           // the prompt's rows of the cache alone
  // Exact attention over the attended tokens, of rows that are not `plain`.
  SideOutput<Real> set;
  bool has_set = false;         // someone asks for it
  std::vector<double> needles;  // [heads, rows, 1 + spans], see needle_shares; empty without needles
  // Outputs are whatever they were.
  void open(int32_t heads_, int32_t rows_, int32_t v_dim_) {
    heads = heads_, rows = rows_, v_dim = v_dim_;
    out.resize(size_t(heads) * size_t(rows) * size_t(v_dim));
    measures.assign(size_t(heads) * size_t(rows), {});
    prefix = {}, set = {}, has_set = false;
    needles.clear();
  }
  // Outputs are sums to come.
  void clear(int32_t heads_, int32_t rows_, int32_t v_dim_) {
    open(heads_, rows_, v_dim_);
    std::fill(out.begin(), out.end(), Real(0));
  }
  size_t cells() const { return measures.size(); }
  size_t at(int32_t head, int32_t row) const { return size_t(head) * size_t(rows) + size_t(row); }
};

// tokens: what the row attends to, each once; negative entries are rows that stand for no token.
template <class Real>
RowMeasure measure_row(const Tile<Real>& tile, int32_t head, int32_t row, std::span<const int32_t> tokens,
                       Normaliser tau, const RowRanking* ranking) {
  const size_t at = size_t(tile.at(head, row));
  const Real* strip = tile.strip_row(head, row);
  RowMeasure m;
  for (const int32_t token : tokens)
    if (token >= 0) {
      m.kept_mass += double(strip[token]);
      ++m.attended;
    }
  m.kept_mass /= tile.z[at];
  m.tau = tau.sum / tile.z[at] * std::exp(tau.shift - double(tile.shift[at]));
  m.log_tau = std::log(tau.sum / tile.z[at]) + (tau.shift - double(tile.shift[at]));
  if (ranking == nullptr || m.attended == 0) return m;
  int32_t hits = 0;
  for (const int32_t token : tokens)
    if (token >= 0 && ranking->rank[size_t(token)] < m.attended) ++hits;
  m.index_recall = double(hits) / m.attended;
  m.top_mass = ranking->top_mass[std::min(size_t(m.attended), ranking->top_mass.size()) - 1];
  return m;
}

}  // namespace kvreplay
