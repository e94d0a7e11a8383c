#pragma once
#include <cstdint>

#include "core/platform.hpp"

namespace kvreplay {

// Which of the earlier tokens a row of a layer sees: all, those in a sliding window, or those in its own chunk of the
// text. At most one of the two is set. A number of tokens alone is a sliding window.
struct LayerWindow {
  int32_t sliding = 0;  // 0: none. Row t sees tokens t - sliding + 1..t
  int32_t chunk = 0;    // 0: none. Row t sees tokens floor(t / chunk) chunk..t
  LayerWindow() = default;
  KVR_FN constexpr LayerWindow(int32_t in_window, int32_t in_chunk = 0) : sliding(in_window), chunk(in_chunk) {}

  KVR_FN constexpr bool any() const { return sliding > 0 || chunk > 0; }
  // Most tokens that a row sees; 0: any number.
  KVR_FN constexpr int32_t most() const { return sliding > 0 ? sliding : chunk; }
  // The first token that row t sees. It never falls from row to row.
  KVR_FN constexpr int32_t first(int32_t t) const {
    if (sliding > 0) return t >= sliding ? t - sliding + 1 : 0;
    return chunk > 0 ? t - t % chunk : 0;
  }
  // Number of tokens that row t sees.
  KVR_FN constexpr int32_t seen(int32_t t) const { return t + 1 - first(t); }
  bool operator==(const LayerWindow&) const = default;
};

}  // namespace kvreplay
