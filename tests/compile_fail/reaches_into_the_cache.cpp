// A policy cannot reach the cache's storage, and through it the trace.
// refused: is private within this context
#include "policy_under_test.hpp"
struct Meddler : Base {
  static constexpr Hooks hooks{"evict"};
  void evict(const Team auto&, Cache auto& cache) {
#ifdef OFFENCE
    (void)cache.s_.keys;
#else
    (void)cache.key(0);
#endif
  }
};
REGISTERED(Meddler)
