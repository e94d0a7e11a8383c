// A hook that takes the whole stream is not a hook of the engine, so nothing would call it.
// refused: `hooks` names append, which the policy lacks or which takes other arguments
#include "exact/head_stream.hpp"
#include "policy_under_test.hpp"
struct Oracle : Base {
  static constexpr Hooks hooks{"append"};
#ifdef OFFENCE
  void append(const Team auto&, const auto&, Cache auto&, const HeadStream<float>&) {}
#else
  void append(const Team auto&, const auto&, Cache auto&) {}
#endif
};
REGISTERED(Oracle)
