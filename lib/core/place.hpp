#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvreplay {

// Location of queries, keys and values.
struct Place {
  static constexpr int32_t kWholeLayer = -1;  // as kv head: all kv heads together
  size_t trace = 0;                           // index into the run's traces
  std::string prompt;                         // prompt id
  int32_t layer = 0, kv_head = 0;
  auto operator<=>(const Place&) const = default;
};

}  // namespace kvreplay
