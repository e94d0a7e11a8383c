// A policy cannot store the present token, because a token cannot be copied.
// refused: use of deleted function 'kvreplay::Token
#include "policy_under_test.hpp"
struct Copier : Base {
  static constexpr Hooks hooks{"append"};
  void append(const Team auto& team, const auto& token, Cache auto& cache) {
#ifdef OFFENCE
    auto saved = token;
    (void)saved;
#endif
    cache.push(token);
  }
};
REGISTERED(Copier)
