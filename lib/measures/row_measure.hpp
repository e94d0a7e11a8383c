#pragma once
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "core/attend.hpp"
#include "exact/tile.hpp"

namespace kvreplay {

// What one (query head, row) of a cache says about the exact row (measures.md, section 2).
struct RowMeasure {
  double tau = 0;        // the method's denominator / the exact one
  double kept_mass = 0;  // exact probability of the attended tokens
  double top_mass = -1;  // the most that as many tokens can hold; negative: not ranked
  double index_recall = -1;
  int32_t attended = 0;  // attended tokens
};

// What one cache gives for the rows of a tile. Only scored rows are filled.
template <class Real>
struct LaneTile {
  int32_t heads = 0, rows = 0, v_dim = 0;
  std::vector<Real> out;             // [heads, rows, v_dim]
  std::vector<RowMeasure> measures;  // [heads, rows]
  void resize(int32_t heads_, int32_t rows_, int32_t v_dim_) {
    heads = heads_, rows = rows_, v_dim = v_dim_;
    out.assign(size_t(heads) * size_t(rows) * size_t(v_dim), Real(0));
    measures.assign(size_t(heads) * size_t(rows), {});
  }
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
  if (ranking == nullptr || m.attended == 0) return m;
  int32_t hits = 0;
  for (const int32_t token : tokens)
    if (token >= 0 && ranking->rank[size_t(token)] < m.attended) ++hits;
  m.index_recall = double(hits) / m.attended;
  m.top_mass = ranking->top_mass[std::min(size_t(m.attended), ranking->top_mass.size()) - 1];
  return m;
}

}  // namespace kvreplay
