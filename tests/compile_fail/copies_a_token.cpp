// A policy cannot keep the present: a token cannot be copied.
#include "policy_under_test.hpp"
struct Copier : Base {
  KVR_FN void append(const Team auto& team, const auto& token, Cache auto& cache) {
#ifdef OFFENCE
    auto saved = token;
    (void)saved;
#endif
    cache.push(team, token);
  }
};
REPLAYED(Copier)
