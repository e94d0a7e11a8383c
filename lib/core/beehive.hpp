#pragma once
#include <cstdint>

#include "core/select.hpp"

namespace kvreplay {

// One pass of BUZZ over a list of tokens, wherever it is held: `first` sinks, a middle, and a recent window.
// What a pass kept of the middle is old in the next one.
struct Beehive {
  int32_t window = 0, fires_at = 1;    // the middle that starts a pass
  int32_t old_step = 1, new_step = 1;  // old tokens: every old_step-th stays; new ones: one of each new_step
  bool heaviest = true;                // of a segment; else its first
  int32_t first_new = 0;               // tokens before it have been through a pass

  // Marks what stays of the list, stays(i) = 1 or 0, by token(i) and score(i); false if there is nothing to
  // do.
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
  // One pass over a list of token numbers with a score for each token; returns how many stay. `stays` is
  // scratch.
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
  // One pass over a cache by its scores; false if no token left.
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
