#pragma once
#include <cstdint>

#include "core/platform.hpp"

namespace kvreplay {

// Statistics that a method reads about queries it has not seen yet (Prompt::mean_query() and its neighbours).
struct StatisticsNeeds {
  bool means = false;       // mean query before rotation, and mean modulus of each pair of channels
  bool directions = false;  // the main direction of the rotated queries
  bool channels = false;    // which channels contribute most to the products with keys
  bool any() const { return means || directions || channels; }
  StatisticsNeeds operator|(const StatisticsNeeds& o) const {
    return {means || o.means, directions || o.directions, channels || o.channels};
  }
};

// These statistics for some query heads.
struct QueryStatistics {
  const double* means = nullptr;       // [heads, dim]; includes an attention factor
  const double* sizes = nullptr;       // [heads, pairs], likewise
  const double* directions = nullptr;  // [heads, dim]
  const int32_t* channels = nullptr;   // [heads, dim], the most important channel first
  // The statistics of the heads from `first` on.
  KVR_FN QueryStatistics from(int64_t first, int32_t dim, int32_t pairs) const {
    const auto moved = [&](auto* numbers, int32_t width) {
      return numbers == nullptr ? nullptr : numbers + first * width;
    };
    return {moved(means, dim), moved(sizes, pairs), moved(directions, dim), moved(channels, dim)};
  }
};

}  // namespace kvreplay
