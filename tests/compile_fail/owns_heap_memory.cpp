// A policy owns no memory beside the rows and its layout().
#include <vector>

#include "policy_under_test.hpp"
struct Heap : Base {
#ifdef OFFENCE
  std::vector<float> secret;
#endif
};
static_assert(Policy<Heap>);
