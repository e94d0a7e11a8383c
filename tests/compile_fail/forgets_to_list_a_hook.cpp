// The engine would not call a hook that the list does not name.
// refused: the policy has the hook evict, which `hooks` does not name
#include "policy_under_test.hpp"
struct Forgetful : Base {
#ifdef OFFENCE
  static constexpr Hooks hooks{"layout"};
#else
  static constexpr Hooks hooks{"layout evict"};
#endif
  Layout layout(const MethodContext&) const { return {}; }
  void evict(const Team auto&, Cache auto&) {}
};
REGISTERED(Forgetful)
