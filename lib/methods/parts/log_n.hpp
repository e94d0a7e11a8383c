#pragma once
#include <cmath>
#include <cstdint>

#include "core/platform.hpp"

namespace kvreplay {

// BUZZ multiplies all logits of a step by ln L / ln 512, so that attention over a longer cache does not flatten. live:
// L counts the tokens that the step attends to; context: those that it would attend to without eviction.
enum class LogN { off, live, context };
constexpr const char* kLogNHelp = "factor ln(L)/ln(512) on all logits, L = attended tokens or the whole context";

inline double log_n_factor(LogN which, int32_t rows, int32_t token) {
  if (which == LogN::off) return 1;
  return std::log(double(which == LogN::live ? rows : token + 1)) / std::log(512.0);
}

}  // namespace kvreplay
