#pragma once
#include <vector>

#include "catalog/cell.hpp"
#include "measures/scored_row.hpp"
#include "measures/sums.hpp"
#include "measures/wanted.hpp"

namespace kvreplay {

// The left sides of the theorems (measures.md, section 1) and how they compare with a method's promise.
class EpsilonForms {
 public:
  EpsilonForms(int32_t heads, int64_t rows, Wanted wanted);
  void add(const ScoredRow& row);
  void finish(CellMeasures& measures, const ErrorBound& error_bound);

 private:
  static void compare(CellMeasures& measures, const ErrorBound& error_bound,
                      const std::vector<double>& measured, std::optional<double> mean);
  Wanted wanted_;
  std::vector<double> spectral_, frobenius_;  // of the pairs that have norms to divide by, where someone asks
  Sums spectral_sums_, frobenius_sums_, additive_;
};

}  // namespace kvreplay
