#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvreplay {

// How old tokens are when they leave a cache: t - token, for every eviction.
class EvictionAges {
 public:
  void arrive(int32_t token) { resident_.push_back(token); }
  // S_t stands, `evictions` tokens have left so far; left(token) says whether this one has.
  template <class F>
  void settle(int32_t t, int64_t evictions, F left, std::vector<double>& ages) {
    if (evictions == int64_t(ages.size())) return;
    std::erase_if(resident_, [&](int32_t token) {
      if (!left(token)) return false;
      ages.push_back(t - token);
      return true;
    });
  }

 private:
  std::vector<int32_t> resident_;
};

}  // namespace kvreplay
