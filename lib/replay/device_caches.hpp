#pragma once
#include <functional>
#include <vector>

#include "replay/head_device.hpp"
#include "replay/lane.hpp"

namespace kvreplay {

// Caches whose rows a device computes. Their lanes decide, or learn from the device who leaves, and keep the
// accounts; what is left is a list of tokens and of when they left.
template <class Real>
class DeviceCaches {
 public:
  explicit DeviceCaches(const HeadStream<Real>& stream) : stream_(stream) {}
  struct Options {
    bool evicts_first = false, averages = false;
    bool prefix = false, set = false;  // side errors that someone asks for
    size_t family = 0;
  };
  // After its prompt. Returns its number.
  size_t add(Lane<Real>& lane, const Shortcut& shortcut, const Options& options);
  bool empty() const { return caches_.empty(); }
  // Everything after the prompt arrives. guard(id, step) calls step(), which may throw LaneError.
  void decide(HeadDevice& device, const std::function<void(size_t, const std::function<void()>&)>& guard);
  const std::vector<HeldTokens>& held() const { return held_; }
  // Tokens that the row of token t attends to.
  int32_t attended(size_t id, int32_t t) const { return caches_[id].sizes[size_t(t - stream_.prompt)]; }
  bool plain(size_t id) const { return !held_[id].weighted; }
  const Lane<Real>& lane(size_t id) const { return *caches_[id].lane; }

 private:
  struct Cache {
    Lane<Real>* lane;
    Shortcut shortcut;
    Options options;
    std::vector<int32_t> sizes;  // of each token after the prompt
  };
  bool is_chain(const Cache& cache) const;
  Departures nobody_leaves() const;
  ScoredCache chain_of(const Cache& cache) const;
  void step_fixed(size_t id);
  void step_sliding(size_t id);
  void step_scores(size_t id, const Departures& departures);
  void list_held(size_t id, const std::vector<int32_t>& start, const std::vector<int32_t>& until);

  const HeadStream<Real>& stream_;
  std::vector<Cache> caches_;
  std::vector<HeldTokens> held_;
};

}  // namespace kvreplay
