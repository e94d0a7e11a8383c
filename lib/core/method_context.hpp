#pragma once
#include <cstdint>
#include <optional>

#include "core/common_options.hpp"
#include "core/token.hpp"

namespace kvreplay {

// Tokens that are replayed, those of the prompt included; the prompt's arrive in one call unless it streams.
struct Extent {
  int32_t tokens = 0, prompt_tokens = 0;
  int32_t question_tokens = 0;  // the last of the prompt, where the trace says that they are its question
};

// Rows that a cache of one kv head may hold.
struct Budget {
  int32_t tokens = 0;   // 0: the method takes none
  double as_asked = 0;  // in tokens, before it was rounded down
  // Where an allocator shares it over heads, what this head has of it.
  std::optional<int32_t> share = std::nullopt;
  constexpr bool none() const { return tokens == 0; }
};

// The situation that a method is resolved for.
struct MethodContext : Extent {
  Budget budget;
  HeadShape shape{};  // of what decides together
  int32_t layer = 0, n_layers = 0;
  Phase phase = Phase::stream;
  double scale = 1;  // of the logits
  Aggregate aggregate = Aggregate::sum;
  int32_t window = 0;  // the layer's sliding window; known to the replay only
  // Of the whole trace, future included; 0 where the method's oracle_needs() does not ask, and while a run is
  // planned.
  double median_key_distance = 0, largest_query_norm = 0;
  bool compares_heads = false;  // scores of several kv heads will be ranked together
};

// Numbers of the trace that no causal method can know. A method that asks for them says so in its text.
struct OracleNeeds {
  bool median_key_distance = false;  // measures.md, section 4: of at most 2000 pairs
  bool largest_query_norm = false;
};

}  // namespace kvreplay
