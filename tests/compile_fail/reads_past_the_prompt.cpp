// The prompt has accessors only: there is no base pointer to index past its end.
// refused: is private within this context
#include "policy_under_test.hpp"
struct Reader : Base {
  static constexpr Hooks hooks{"read_prompt"};
  void read_prompt(const Team auto&, const auto& prompt, Cache auto&) {
#ifdef OFFENCE
    const auto* base = prompt.view_.keys;
#else
    const auto* base = prompt.key(0).data();
#endif
    (void)base;
  }
};
REGISTERED(Reader)
