#pragma once
#include <array>
#include <vector>

#include "measures/accumulator.hpp"

namespace kvreplay::test {

// Rows of one query head with outputs of two numbers; rows are the tokens 1, 2, ... of a trace. Normalisers equal the
// exact ones until a test sets them.
struct MeasuredRows {
  std::vector<RowResult> rows;
  std::vector<ExactRow> exact;
  explicit MeasuredRows(int32_t n) : rows(size_t(n)) {
    for (int32_t t = 1; t <= n; ++t) {
      exact.emplace_back(t, 0);
      exact.back().l2 = exact.back().v_operator = exact.back().v_frobenius = exact.back().v_largest = 1;
    }
    for (RowResult& row : rows) row.tau = 1;
  }
  // Sets exact output o and the cache's output z; normalisers must be set before.
  void set(int32_t i, std::array<double, 2> o, std::array<double, 2> z) {
    RowResult& r = rows[size_t(i)];
    r.error2 = r.exact2 = r.mine2 = r.inner = r.positive2 = r.numerator2 = 0;
    for (size_t c = 0; c < 2; ++c) {
      const double positive = std::max(o[c], 1e-8);
      r.error2 += (z[c] - o[c]) * (z[c] - o[c]), r.exact2 += o[c] * o[c], r.mine2 += z[c] * z[c];
      r.inner += z[c] * o[c], r.positive2 += positive * positive;
      r.numerator2 += (r.tau * z[c] - o[c]) * (r.tau * z[c] - o[c]);
    }
  }
  Measured measured(const ErrorBound& error_bound = {}, double tiny_norm = 1e-12) const {
    Accumulator a({1, int64_t(rows.size()), {}}, tiny_norm, {});
    for (size_t i = 0; i < rows.size(); ++i) {
      a.add<double>(rows[i], exact[i], 0, {{}, {}, {}, {}, 2, nullptr});
      a.end_row();
    }
    CellResult r;
    a.finish(r, error_bound);
    return r.measures;
  }
};

}  // namespace kvreplay::test
