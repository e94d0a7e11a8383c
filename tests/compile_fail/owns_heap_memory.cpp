// A policy owns no memory besides its rows and its layout().
// refused: a policy is a trivially copyable struct
#include <vector>

#include "policy_under_test.hpp"
struct Heap : Base {
  static constexpr Hooks hooks{""};
#ifdef OFFENCE
  std::vector<float> secret;
#endif
};
REGISTERED(Heap)
