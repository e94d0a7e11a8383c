#pragma once
#include <cstdint>

namespace kvreplay {

// Tokens begin..end-1.
struct TokenSpan {
  int32_t begin = 0, end = 0;
  bool holds(int32_t token) const { return token >= begin && token < end; }
  bool operator==(const TokenSpan&) const = default;
};

}  // namespace kvreplay
