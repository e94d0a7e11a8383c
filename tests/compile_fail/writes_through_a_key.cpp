// The numbers of a row are read-only: weights and rows change only through methods of the cache.
// refused: assignment of read-only location
#include "policy_under_test.hpp"
struct Forger : Base {
  static constexpr Hooks hooks{"evict"};
  void evict(const Team auto& team, Cache auto& cache) {
#ifdef OFFENCE
    cache.key(0)[0] = 1;
#endif
    (void)team, (void)cache;
  }
};
REGISTERED(Forger)
