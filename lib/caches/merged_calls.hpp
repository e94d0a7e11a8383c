#pragma once
#include "caches/merge_rules.hpp"
#include "caches/wrapped_scores.hpp"

namespace kvreplay {

// The step hooks of a policy whose evicted rows are merged into others, whatever rule evicts them.
template <class Real>
struct MergedCalls : WrappedCalls<Real> {
  using Base = WrappedCalls<Real>;
  Merging* merging;  // null: evicted rows are not merged

  bool observes() const { return (merging != nullptr && merging->observes()) || Base::observes(); }
  void evict(const SerialTeam& team, BasicCache<Real>& cache) const;
  void observe(const SerialTeam& team, BasicCache<Real>& cache, std::span<const double> p) const;
  void observe(const SerialTeam& team, BasicCache<Real>& cache, const HeadProbabilities& p) const;

 private:
  template <class P>
  void receive(const BasicCache<Real>& cache, P probability) const;
};

}  // namespace kvreplay
