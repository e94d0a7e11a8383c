#pragma once
#include <vector>

#include "catalog/policy_table.hpp"
#include "core/wrapper.hpp"

namespace kvreplay {

// What a wrapper knows of a cache.
struct WrappedScores {
  Wrapper wrapper;
  int32_t budget = 0;  // tokens of this head
  double voters = 1;   // what prompt scores are summed over: rows that vote times query heads
  // critical: of the prompt's tokens, ||v W||_1 behind the output projection, mean over the query heads.
  std::vector<double> output_norms;
  // caote, in steps: the scores that are wrapped, of each query head or of the group, [heads or 1, tokens], and what a
  // step carries over of them (ScoreRule::carry).
  std::vector<double> scores;
  int32_t tokens = 0;
  double carry = 0;
  bool steps() const { return tokens > 0; }
};

// The steps' hooks of a policy whose scores a wrapper replaces before the cut: whoever cuts by scores then cuts by the
// wrapper's.
template <class Real>
struct WrappedCalls : TableCalls<Real> {
  WrappedScores* wrapped;  // null: nobody wraps

  bool observes_heads() const { return wraps_steps() || TableCalls<Real>::observes_heads(); }
  void read_prompt(const SerialTeam& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) const;
  using TableCalls<Real>::observe;
  void observe(const SerialTeam& team, BasicCache<Real>& cache, const HeadProbabilities& p) const;

 private:
  bool wraps_steps() const { return wrapped != nullptr && wrapped->steps(); }
  bool by_head() const { return wrapped->wrapper.level == Wrapper::Level::query; }
  void by_output(const Prompt<Real>& prompt, BasicCache<Real>& cache) const;
  void by_removal(const Prompt<Real>& prompt, BasicCache<Real>& cache) const;
};

}  // namespace kvreplay
