// The list names `observe`, but the policy defines it under another name.
// refused: `hooks` names observe, which the policy lacks or which takes other arguments
#include "policy_under_test.hpp"
struct Promises : Base {
  static constexpr Hooks hooks{"observe"};
#ifdef OFFENCE
  void observe_rows(const Team auto&, Cache auto&, std::span<const double>) {}
#else
  void observe(const Team auto&, Cache auto&, std::span<const double>) {}
#endif
};
REGISTERED(Promises)
