#pragma once
#include "caches/cache_steps.hpp"

namespace kvreplay {

// The prompt of one cache, if it arrives in one call: shows it to the policy, which cuts it.
template <class Real>
class PromptCut {
 public:
  PromptCut(CacheState<Real>& state, CacheAccount<Real>& account, CacheSteps<Real>& steps)
      : state_(state), account_(account), steps_(steps) {}

  PromptNeeds needs() const { return state_.setup.method.needs(); }
  // Likewise of the method that decides after the prompt (option `then`).
  PromptNeeds later_needs() const { return state_.later ? state_.later->needs() : PromptNeeds{}; }
  // The first row whose attention the merge rule uses; PromptNeeds::kNoRows if it uses none.
  int32_t merge_rows_from() const { return state_.merging.rows_from(state_.stream.prompt); }
  // Shows row t, from needs().rows_from on; p: probabilities of all heads of the stream.
  void observe(int32_t t, const HeadProbabilities& p);
  // larger: the same method's cache at a larger budget, which has read the prompt already; or null.
  void read(const PromptSums& sums, const PromptCut* larger);
  void forget_selection();  // call when no smaller budget will reuse the selection
  // The head's scores for sharing a budget: read() without the cut.
  HeadScores head_scores(const PromptSums& sums);
  // For heads that cut together: scores of the tokens held at the first undecided cut; empty if there is none.
  HeadScores cut_scores(const PromptSums& sums);

 private:
  void receive(const PromptSums& sums);
  void close();  // ends the reading, after the cut
  Prompt<Real> view(const PromptSums& sums) const;

  CacheState<Real>& state_;
  CacheAccount<Real>& account_;
  CacheSteps<Real>& steps_;
};

}  // namespace kvreplay
