#pragma once
#include <optional>

#include "core/policy.hpp"

namespace kvreplay {

// What the engine may do for a cache instead of attending row by row (the policy's text stays the definition,
// and an audit always follows it). All of them need rows that are tokens of the trace as they stand, where
// they were recorded.
struct Shortcut {
  enum class Kind {
    none,
    fixed,    // cut once: a set of prompt tokens and everything that came later
    sliding,  // streams, but looks at no probability: who leaves when is known before anybody attends
    scores,   // follows a ScoreRule
  };
  Kind kind = Kind::none;
  ScoreRule rule{};  // of `scores`
};

}  // namespace kvreplay
