// The cache's storage, and through it the trace, is out of reach.
#include "policy_under_test.hpp"
struct Meddler : Base {
  KVR_FN void evict(const Team auto&, Cache auto& cache) {
#ifdef OFFENCE
    (void)cache.s_.keys;
#else
    (void)cache.key(0);
#endif
  }
};
REPLAYED(Meddler)
