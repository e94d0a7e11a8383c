#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/layer_window.hpp"
#include "core/method_info.hpp"

namespace kvreplay {

// Comparison of one (query head, row) of a cache with the exact row (docs/measures.md, sections 1 and 2). CPU cores and
// devices compute the same numbers. z: the cache's output, o: the exact one.
struct RowResult {
  static constexpr double kNone = -1;  // no value
  double tau = 0;                      // the cache's denominator / the exact one
  double log_tau = kUnset;             // ln tau, for ratios outside the range of double
  double kept_mass = 0;                // exact probability of the attended tokens
  double top_mass = kNone;             // largest mass that as many tokens can hold; none: rows are not ranked
  double index_recall = kNone;
  double spread = kUnset;       // ErrorBound::spread at this row
  double missed_bound = kNone;  // bound of the mass that this row misses
  // Sums over the coordinates of z and o: |z - o|^2, |o|^2. With Work::details or a spread also |z|^2, <z, o>,
  // |max(o, 1e-8)|^2, |tau z - o|^2.
  double error2 = 0, exact2 = 0, mine2 = 0, inner = 0, positive2 = 0, numerator2 = 0;
  // Relative errors of other pairs of outputs: over the prompt's rows alone, and of exact attention over the attended
  // tokens (equal to the error of z if the row is plain).
  double prefix_error = kNone, set_error = kNone;
  int32_t attended = 0;  // number of attended tokens
  int32_t repeated = 0;  // attended tokens that the row of the token before attended to, if it is scored
  bool plain = false;    // z is the exact attention over the attended tokens, renormalised

  bool is_compared(bool details) const { return details || spread != kUnset; }
};

// <z, o> / (|z| |o|); 0 if z is zero, 1 if o is zero. Needs a compared row.
inline double cosine(const RowResult& r) {
  if (r.exact2 <= 0) return 1;
  return r.mine2 > 0 ? r.inner / (std::sqrt(r.exact2) * std::sqrt(r.mine2)) : 0;
}

// Properties of the exact row.
struct ExactRow {
  int32_t token = -1;                                     // t; negative: the row is not scored
  int32_t visible = 0;                                    // number of tokens that it attends to
  double l2 = 0;                                          // ||x||_2 of its probabilities
  double log_normaliser = 0;                              // ln sum exp(l_i)
  double v_frobenius = 0, v_operator = 0, v_largest = 0;  // norms of V_0..t

  ExactRow() = default;
  ExactRow(int32_t t, LayerWindow window) : token(t), visible(window.seen(t)) {}
};

// Another output of the same rows: sums [v_dim] over some of the coefficients, and their divisors.
template <class Real>
struct SideOutput {
  std::vector<Real> out;       // [heads, rows, v_dim]; empty: not requested
  std::vector<double> weight;  // [heads, rows]; 0: no output
  void resize(size_t cells, int32_t v_dim) {
    out.assign(cells * size_t(v_dim), Real(0));
    weight.assign(cells, 0.0);
  }
};

// How many of the k tokens with the largest exact probability a row attends to (docs/measures.md, working sets).
struct RecallAt {
  double hits = kUnset;       // their share; kUnset: the row is not ranked
  double mass = 0, most = 0;  // exact probability of those that are attended, and of all k
};

// What a cache reads in a step, once for all its query heads.
struct StepReads {
  int32_t tokens = 0;   // tokens that are read, each once
  int32_t others = 0;   // rows that are read and stand for no single token
  int32_t scanned = 0;  // further tokens whose part of an index is read
  ExtraBytes index;     // a query-time method has one
  // Filled on request (RowResults): these tokens; all tokens that the cache holds, and what each was chosen by.
  std::vector<int32_t> read, scan, held;
  std::vector<double> scores;
  void reset() {
    tokens = others = scanned = 0, index = {};
    read.clear(), scan.clear(), held.clear(), scores.clear();
  }
};

// Results of one cache for the rows of a tile. Only scored rows are filled.
template <class Real>
struct RowResults {
  int32_t heads = 0, rows = 0, v_dim = 0;
  std::vector<RowResult> of;    // [heads, rows]
  std::vector<Real> out;        // [heads, rows, v_dim]
  SideOutput<Real> prefix;      // from the cache's rows of the prompt alone
  SideOutput<Real> set;         // exact attention over the attended tokens, for rows that are not plain
  std::vector<double> needles;  // [heads, rows, 1 + spans], see needle_shares; empty without needles
  // <g_s, z - o> for each recorded sample of the gradient (Sensitivity), [heads, rows, samples]; 0 for rows without
  // one.
  std::vector<float> projections;
  bool lists_reads = false, scores_reads = false;  // what to fill in `reads`
  std::vector<StepReads> reads;                    // [rows]
  std::vector<RecallAt> recalls;                   // [heads, rows, counts k that were asked for]

  // Prepares for a new tile; leaves `out` uninitialised.
  void open(int32_t heads_, int32_t rows_, int32_t v_dim_) {
    heads = heads_, rows = rows_, v_dim = v_dim_;
    out.resize(size_t(heads) * size_t(rows) * size_t(v_dim));
    of.assign(size_t(heads) * size_t(rows), {});
    prefix = {}, set = {};
    needles.clear(), projections.clear(), recalls.clear();
    reads.resize(size_t(rows));
    for (StepReads& of_row : reads) of_row.reset();
  }
  // As open(), but sets `out` to 0, ready to be summed into.
  void clear(int32_t heads_, int32_t rows_, int32_t v_dim_) {
    open(heads_, rows_, v_dim_);
    std::fill(out.begin(), out.end(), Real(0));
  }
  size_t cells() const { return of.size(); }
  size_t at(int32_t head, int32_t row) const { return size_t(head) * size_t(rows) + size_t(row); }
};

}  // namespace kvreplay
