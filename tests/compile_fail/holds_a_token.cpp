// A policy cannot hold a token as a member.
#include "policy_under_test.hpp"
struct Hoarder : Base {
#ifdef OFFENCE
  Token<float> saved;
#endif
};
static_assert(Policy<Hoarder>);
