// A hook that asks for the whole stream is no hook: nothing would call it.
#include "exact/head_stream.hpp"
#include "policy_under_test.hpp"
struct Oracle : Base {
#ifdef OFFENCE
  KVR_FN void append(const Team auto&, const auto&, Cache auto&, const HeadStream<float>&) {}
#else
  KVR_FN void append(const Team auto&, const auto&, Cache auto&) {}
#endif
};
static_assert(Appends<Oracle, float>);
