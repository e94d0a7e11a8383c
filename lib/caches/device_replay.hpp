#pragma once
#include <span>

#include "caches/device_policy.hpp"
#include "caches/prompt_cut.hpp"

namespace kvreplay {

// One cache that a device replays, from the first token on or only for the prompt's cut: what the device receives, and
// what the cache takes over from its record.
template <class Real>
class DeviceReplay {
 public:
  DeviceReplay(CacheState<Real>& state, CacheAccount<Real>& account, PromptCut<Real>& prompt)
      : state_(state), account_(account), prompt_(prompt) {}

  // Whether the policy may run there, as far as this cache can tell.
  bool may_run() const;
  // Worthwhile if a selection is expensive and several budgets share it.
  bool may_cut() const;
  DevicePolicy policy(const PromptSums& sums, bool prefix, bool set);
  void follow_cut(const DevicePolicyRecord& record, double seconds);
  void follow(const DevicePolicyRecord& record, std::span<const uint8_t> scored);  // scored: [tokens]
  void check_end(const PolicyEnd& end) const { state_.check_end(end); }            // throws ReplayError

 private:
  void take_over(const DevicePolicyRecord& record);

  CacheState<Real>& state_;
  CacheAccount<Real>& account_;
  PromptCut<Real>& prompt_;
};

}  // namespace kvreplay
