// A misspelt hook is refused in the list: `observes_rows` would never be called.
// refused: `hooks` has a word that is not the name of a hook
#include "policy_under_test.hpp"
struct Misspelt : Base {
#ifdef OFFENCE
  static constexpr Hooks hooks{"observes_rows"};
  void observes_rows(const Team auto&, Cache auto&, std::span<const double>) {}
#else
  static constexpr Hooks hooks{"observe"};
  void observe(const Team auto&, Cache auto&, std::span<const double>) {}
#endif
};
REGISTERED(Misspelt)
