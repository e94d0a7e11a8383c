#pragma once
#include <vector>

#include "caches/cut_calls.hpp"
#include "core/common_options.hpp"

namespace kvreplay {

// The state of a wrapper for one cache.
struct WrappedScores {
  Wrapper wrapper;
  int32_t budget = 0;  // tokens of this head
  double voters = 1;   // number of votes in a prompt score: voting rows times query heads
  // critical: ||v W||_1 of the prompt's tokens after the output projection, averaged over the query heads.
  std::vector<double> output_norms;
  // caote, in steps: the wrapped scores of each query head or of the group, [heads or 1, tokens], and the factor by
  // which a step carries them over (ScoreRule::carry).
  std::vector<double> scores;
  int32_t tokens = 0;
  double carry = 0;
  bool steps() const { return tokens > 0; }
};

// The step hooks of a policy whose scores a wrapper replaces before the cut: a policy that cuts by scores then cuts by
// the wrapper's scores.
template <class Real>
struct WrappedCalls : CutCalls<Real> {
  WrappedScores* wrapped;  // null: no wrapper

  bool observes_heads() const { return wraps_steps() || CutCalls<Real>::observes_heads(); }
  void read_prompt(const SerialTeam& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) const;
  using CutCalls<Real>::observe;
  void observe(const SerialTeam& team, BasicCache<Real>& cache, const HeadProbabilities& p) const;

 private:
  bool wraps_steps() const { return wrapped != nullptr && wrapped->steps(); }
  bool by_head() const { return wrapped->wrapper.level == Wrapper::Level::query; }
  void by_output(const Prompt<Real>& prompt, BasicCache<Real>& cache) const;
  void by_removal(const Prompt<Real>& prompt, BasicCache<Real>& cache) const;
};

}  // namespace kvreplay
