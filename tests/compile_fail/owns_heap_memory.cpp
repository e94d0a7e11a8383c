// A policy owns no memory beside the rows and its layout().
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
