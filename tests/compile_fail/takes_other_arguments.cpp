// The engine could not call a hook with its arguments in another order.
// refused: `hooks` names choose, which the policy lacks or which takes other arguments
#include "policy_under_test.hpp"
struct Swapped : Base {
  static constexpr Hooks hooks{"choose"};
#ifdef OFFENCE
  void choose(const Team auto&, const HeadProbabilities&, const Cache auto&, uint8_t*) {}
#else
  void choose(const Team auto&, const Cache auto&, const HeadProbabilities&, uint8_t*) {}
#endif
};
REGISTERED(Swapped)
