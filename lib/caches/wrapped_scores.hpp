#pragma once
#include <vector>

#include "catalog/policy_table.hpp"
#include "core/wrapper.hpp"

namespace kvreplay {

// The steps' hooks of a policy whose prompt scores a wrapper replaces before the cut: whoever cuts by scores then cuts
// by the wrapper's.
template <class Real>
struct WrappedCalls : TableCalls<Real> {
  const Wrapper* wrapper;  // null: none
  int32_t budget;          // tokens of this head
  double votes;            // what its scores are summed over: rows that vote times query heads
  // critical: of the prompt's tokens, ||v W||_1 behind the output projection, mean over the query heads.
  const std::vector<double>* output_norms;

  void read_prompt(const SerialTeam& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) const;

 private:
  void by_output(const Prompt<Real>& prompt, BasicCache<Real>& cache) const;
  void by_removal(const Prompt<Real>& prompt, BasicCache<Real>& cache) const;
};

}  // namespace kvreplay
