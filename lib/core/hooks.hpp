#pragma once
#include <cstdint>
#include <string_view>

// Every hook that a policy may have; lib/methods/README.md explains each. A policy names its hooks (`static constexpr
// Hooks hooks{"layout read_prompt evict"}`), and its registration compares the list with what the compiler finds
// (catalog/policy_table.hpp). A hook with a misspelt name, or with arguments that the engine does not pass, fails to
// compile instead of being ignored.

namespace kvreplay {

// clang-format off
#define KVR_HOOKS(X)                                                                                       \
  /* Steps of the replay, in the order of their calls. */                                                  \
  X(observe_prompt) X(read_prompt) X(evict) X(append) X(observe_queries) X(choose) X(token_score)          \
  X(logit_factor) X(observe) X(extra_bytes) X(spread) X(missed_bound) X(report)                            \
  /* What the engine sizes and checks. */                                                                  \
  X(layout) X(needs) X(oracle_needs) X(traits) X(protection) X(score_rule)                                 \
  X(error_bound) X(voters) X(share) X(head_scores) X(hear)                                                 \
  X(waits_for_heads) X(cut_together)                                                                       \
  X(failure_text) X(set_options) X(rng_arrays)                                                             \
  /* Members that the engine binds. */                                                                     \
  X(state) X(rng) X(given) X(larger) X(open_session)
// clang-format on

enum class Hook : int {
#define KVR_ENUMERATOR(name) name,
  KVR_HOOKS(KVR_ENUMERATOR)
#undef KVR_ENUMERATOR
      kCount
};

constexpr std::string_view kHookNames[] = {
#define KVR_NAME(name) #name,
    KVR_HOOKS(KVR_NAME)
#undef KVR_NAME
};
static_assert(int(Hook::kCount) < 64);

struct Hooks {
  uint64_t bits = 0;

  constexpr Hooks() = default;
  // Names separated by spaces. A policy with a word that is no hook is refused by its registration.
  consteval explicit Hooks(std::string_view words) {
    while (!words.empty()) {
      const size_t end = words.find(' ') < words.size() ? words.find(' ') : words.size();
      if (end > 0) bits |= bit_of(words.substr(0, end));
      words.remove_prefix(end < words.size() ? end + 1 : end);
    }
  }
  constexpr bool known() const { return (bits & kUnknown) == 0; }  // every word is a hook
  constexpr bool has(Hook hook) const { return (bits >> int(hook) & 1u) != 0; }
  constexpr Hooks operator+(Hooks others) const {
    others.bits |= bits;
    return others;
  }

 private:
  static constexpr uint64_t kUnknown = uint64_t{1} << 63;
  static consteval uint64_t bit_of(std::string_view word) {
    for (int i = 0; i < int(Hook::kCount); ++i)
      if (kHookNames[i] == word) return uint64_t{1} << i;
    return kUnknown;
  }
};

}  // namespace kvreplay
