// A policy cannot hold a token as a member.
// refused: a policy is a trivially copyable struct
#include "policy_under_test.hpp"
struct Hoarder : Base {
  static constexpr Hooks hooks{""};
#ifdef OFFENCE
  Token<float> saved;
#endif
};
REGISTERED(Hoarder)
