#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvreplay {

// Where queries, keys and values stand.
struct Place {
  static constexpr int32_t kWholeLayer = -1;  // as kv head: all of them together
  size_t trace = 0;                           // index into the run's traces
  std::string prompt;                         // its id
  int32_t layer = 0, kv_head = 0;
  auto operator<=>(const Place&) const = default;
};

}  // namespace kvreplay
