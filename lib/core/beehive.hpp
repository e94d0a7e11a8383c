#pragma once
#include <cstdint>

#include "core/select.hpp"

namespace kvreplay {

// One pass of BUZZ over a list of tokens, however it is stored: `first` sinks, a middle, and a recent window. Tokens of
// the middle that a pass keeps are old in the next pass.
struct Beehive {
  int32_t window = 0, fires_at = 1;    // fires_at: length of the middle that triggers a pass
  int32_t old_step = 1, new_step = 1;  // keeps every old_step-th old token and one of each new_step new tokens
  bool heaviest = true;                // keeps the highest score of a segment; false: its first token
  int32_t first_new = 0;               // tokens below this index have been through a pass

  // Marks which tokens of the list stay, stays(i) = 1 or 0, by token(i) and score(i); false if there is nothing to do.
  KVR_FN bool pass(const Team auto& team, int32_t size, int32_t first, auto token, auto score, auto stays) {
    const int32_t middle = size - first - window, end = first + middle;
    if (middle < fires_at) return false;
    const int32_t old = team.count(middle, [&](int32_t j) { return token(first + j) < first_new; });
    team.each(size, [&](int32_t i) {
      stays(i) = i < first || i >= end || (i - first < old && (i - first) % old_step == 0) ? 1 : 0;
    });
    team.each((middle - old + new_step - 1) / new_step, [&](int32_t segment) {
      const int32_t from = first + old + segment * new_step, to = from + new_step < end ? from + new_step : end;
      int32_t best = from;
      for (int32_t i = from + 1; i < to && heaviest; ++i)
        if (score(i) > score(best)) best = i;
      stays(best) = 1;
    });
    first_new = token(end);
    return true;
  }
  // Runs one pass over a list of token numbers; `score` has one number per token of the trace. Returns how many stay.
  // `stays` [size] is scratch.
  KVR_FN int32_t thin(const Team auto& team, double* list, int32_t size, int32_t sinks, const double* score,
                      double* stays) {
    const auto token = [&](int32_t i) { return int32_t(list[i]); };
    const bool fired = pass(
        team, size, size < sinks ? size : sinks, token, [&](int32_t i) { return score[token(i)]; },
        [&](int32_t i) -> double& { return stays[i]; });
    if (!fired) return size;
    return team.compact(
        size, [&](int32_t i) { return stays[i] != 0; }, [&](int32_t i) { return list[i]; },
        [&](int32_t to, double kept) { list[to] = kept; });
  }
  // Runs one pass over a cache by its scores; false if it evicted no token.
  KVR_FN bool thin(const Team auto& team, Cache auto& cache, int32_t sinks) {
    const int32_t before = cache.size();
    const bool fired = pass(
        team, before, held_sinks(cache, sinks), [&](int32_t i) { return cache.token(i); },
        [&](int32_t i) { return cache.score(i); }, [&](int32_t i) -> uint8_t& { return cache.mark(i); });
    if (fired) cache.retain(team, [&](int32_t i) { return cache.mark(i) != 0; });
    return cache.size() < before;
  }
};

}  // namespace kvreplay
