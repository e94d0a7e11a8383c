#pragma once
#include <cstdint>

#include "core/cache.hpp"

namespace kvreplay {

// Kept sets that were computed elsewhere: list 0 applies after the prompt, list i after step i. A policy that has a
// member `given` keeps exactly these tokens.
struct GivenLists {
  const int32_t* tokens = nullptr;              // ascending in each list
  const double *num = nullptr, *den = nullptr;  // weights of each token; null: all 1
  const int64_t* off = nullptr;                 // list i has tokens off[i] .. off[i + 1]
  int32_t count = 0;                            // number of lists
  bool split = false;                           // some token counts in one sum alone

  KVR_FN bool weighted() const { return num != nullptr; }
  // Index into `tokens` if list i holds the token; else negative.
  KVR_FN int64_t find(int32_t i, int32_t token) const {
    int64_t low = off[i], high = off[i + 1];
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (tokens[middle] < token) low = middle + 1;
      else high = middle;
    }
    return low < off[i + 1] && tokens[low] == token ? low : -1;
  }
  KVR_FN RowWeights weights(int64_t at) const { return {num[at], den[at]}; }
  // Evicts the rows of a cache that the list does not hold.
  KVR_FN void keep(const Team auto& team, Cache auto& cache, int32_t list) const {
    team.each(cache.size(), [&](int32_t i) { cache.mark(i) = find(list, cache.token(i)) >= 0 ? 1 : 0; });
    cache.retain(team, [&](int32_t i) { return cache.mark(i) != 0; });
  }
};

}  // namespace kvreplay
