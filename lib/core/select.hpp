#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/cache.hpp"

// The selections that methods are made of. The order is convention C8 everywhere: higher score first, then lower index.
// Only the selections of one thread allocate, and the code also runs on a CUDA block.

namespace kvreplay {

// Monotone map of doubles to integers, so that a threshold can be found by bisection. NaN is lowest.
KVR_FN inline uint64_t order_key(double x) {
  if (x != x) return 0;
  const uint64_t bits = std::bit_cast<uint64_t>(x + 0.0);  // + 0.0: -0 and 0 are equal scores
  return bits >> 63 != 0 ? ~bits : bits | (uint64_t{1} << 63);
}

inline double score_of_key(uint64_t key) {
  return std::bit_cast<double>(key >> 63 != 0 ? key & ~(uint64_t{1} << 63) : ~key);
}

// The largest key of n scores for which surplus(key) >= 0. surplus decreases with the key and is not negative for the
// smallest score. A key with surplus 0 is returned at once.
template <Team T, class F, class S>
uint64_t highest_key(const T& team, int32_t n, F score, S surplus) {
  uint64_t low = order_key(-team.largest(n, [&](int32_t i) { return -score(i); }).score);
  uint64_t high = order_key(team.largest(n, score).score);
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2 + 1;
    const int32_t left = surplus(middle);
    if (left == 0) return middle;
    if (left > 0) low = middle;
    else high = middle - 1;
  }
  return low;
}

// The count-th largest key of n scores, 1 <= count <= n. One thread partitions the keys, others bisect.
template <Team T, class F>
uint64_t key_at_rank(const T& team, int32_t n, int32_t count, F score) {
  if constexpr (std::is_same_v<T, SerialTeam>) {
    static thread_local std::vector<uint64_t> keys;
    keys.resize(size_t(n));
    for (int32_t i = 0; i < n; ++i) keys[size_t(i)] = order_key(score(i));
    std::nth_element(keys.begin(), keys.begin() + (count - 1), keys.end(), std::greater<>());
    return keys[size_t(count - 1)];
  } else {
    return highest_key(team, n, score, [&](uint64_t key) {
      return team.count(n, [&](int32_t i) { return order_key(score(i)) >= key; }) >= count ? 1 : -1;
    });
  }
}

// The count-th largest of n scores, 1 <= count <= n.
template <Team T, class F>
double score_at_rank(const T& team, int32_t n, int32_t count, F score) {
  return score_of_key(key_at_rank(team, n, count, score));
}

// Calls chosen(i, bool) for i in [0, n): true for the first `count` in C8's order.
template <Team T, class F, class S>
void choose_top(const T& team, int32_t n, int32_t count, F score, S chosen) {
  if (count >= n || count <= 0) {
    team.each(n, [&](int32_t i) { chosen(i, count > 0); });
    return;
  }
  const uint64_t low = key_at_rank(team, n, count, score);
  const int32_t sure = team.count(n, [&](int32_t i) { return order_key(score(i)) > low; });
  const int32_t ties = team.count(n, [&](int32_t i) { return order_key(score(i)) == low; });
  team.each(n, [&](int32_t i) { chosen(i, order_key(score(i)) > low); });
  if (sure + ties == count) {
    team.each(n, [&](int32_t i) {
      if (order_key(score(i)) == low) chosen(i, true);
    });
    return;
  }
  int32_t left = count - sure;
  for (int32_t i = 0; i < n && left > 0; ++i)
    if (order_key(score(i)) == low) chosen(i, true), --left;
}

// The largest key for which the scores at or above it sum to at least `mass`; the smallest key if all do not. One
// thread narrows the keys down, others bisect.
template <Team T, class F>
uint64_t key_at_mass(const T& team, int32_t n, double mass, F score) {
  if constexpr (std::is_same_v<T, SerialTeam>) {
    static thread_local std::vector<std::pair<uint64_t, double>> keys;
    keys.clear();
    for (int32_t i = 0; i < n; ++i) keys.emplace_back(order_key(score(i)), score(i));
    const auto sum = [](auto from, auto to) {
      return std::accumulate(from, to, 0.0, [](double s, const auto& key) { return s + key.second; });
    };
    auto first = keys.begin(), last = keys.end();  // where the key lies; those before are larger
    for (double before = 0;;) {
      const uint64_t pivot = (first + (last - first) / 2)->first;
      const auto equal = std::partition(first, last, [&](const auto& key) { return key.first > pivot; });
      const auto less = std::partition(equal, last, [&](const auto& key) { return key.first == pivot; });
      const double larger = before + sum(first, equal), at_least = larger + sum(equal, less);
      if (equal != first && larger >= mass) last = equal;
      else if (at_least >= mass || less == last) return pivot;
      else first = less, before = at_least;
    }
  } else {
    const auto above = [&](uint64_t key) {
      return team.sum(n, [&](int32_t i) { return order_key(score(i)) > key ? score(i) : 0.0; });
    };
    return highest_key(team, n, score, [&](uint64_t key) { return above(key - 1) >= mass ? 1 : -1; });
  }
}

// Calls chosen(i, bool) for i in [0, n): true for the shortest prefix in C8's order whose scores (>= 0) sum to at least
// `mass`; true for all if no prefix does.
template <Team T, class F, class S>
void choose_mass(const T& team, int32_t n, double mass, F score, S chosen) {
  if (n <= 0) return;
  const uint64_t low = key_at_mass(team, n, mass, score);
  const double sure = team.sum(n, [&](int32_t i) { return order_key(score(i)) > low ? score(i) : 0.0; });
  team.each(n, [&](int32_t i) { chosen(i, order_key(score(i)) > low); });
  double sum = sure;
  for (int32_t i = 0; i < n && sum < mass; ++i)
    if (order_key(score(i)) == low) chosen(i, true), sum += score(i);
}

// Number of leading rows that hold one of the first `sinks` tokens of the trace. It falls once a layer's sliding window
// has passed them.
template <Cache C>
int32_t held_sinks(const C& cache, int32_t sinks) {
  int32_t held = 0;
  while (held < sinks && held < cache.size() && cache.token(held) < sinks) ++held;
  return held;
}

// Number of rows that hold tokens up to this one.
template <Cache C>
int32_t rows_until(const C& cache, int32_t token) {
  int32_t low = 0, high = cache.size();
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (cache.token(middle) <= token) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Rows that no selection may evict: the first `sinks` and the last `recent` (convention C16).
struct Protect {
  int32_t sinks = 0, recent = 0;
};
// Protects every row that either of the two protects.
inline Protect both(Protect a, Protect b) {
  return {a.sinks > b.sinks ? a.sinks : b.sinks, a.recent > b.recent ? a.recent : b.recent};
}

// Keeps the protected rows and the `count` best of the others by score(row).
template <Team T, Cache C, class F>
void keep_best(const T& team, C& cache, Protect protect, int32_t count, F score) {
  const int32_t first = held_sinks(cache, protect.sinks), n = cache.size() - first - protect.recent;
  if (n <= count) return;
  const auto candidate = [&](int32_t i) { return score(first + i); };
  if (n == count + 1) {
    cache.drop(team, first + team.smallest(n, candidate).index);
    return;
  }
  team.each(cache.size(), [&](int32_t i) { cache.mark(i) = 1; });
  choose_top(team, n, count, candidate, [&](int32_t i, bool yes) { cache.mark(first + i) = yes ? 1 : 0; });
  cache.retain(team, [&](int32_t i) { return cache.mark(i) != 0; });
}

// Keeps the first `sinks` tokens of the trace and the last `budget - sinks` of the others.
template <Team T, Cache C>
void keep_ends(const T& team, C& cache, int32_t sinks, int32_t budget) {
  const int32_t excess = cache.size() - budget;
  if (excess <= 0) return;
  const int32_t held = held_sinks(cache, sinks);
  if (excess == 1) cache.drop(team, held);
  else cache.retain(team, [&](int32_t i) { return i < held || i >= held + excess; });
}

// Cuts to the budget: the protected rows and the best of the others by score(row) stay. If an observation window does
// not fit into the budget, the sinks and the last of the other rows stay.
template <Team T, Cache C, class F>
void keep_scored(const T& team, C& cache, Protect protect, int32_t budget, F score) {
  if (cache.size() <= budget) return;
  const int32_t count = budget - held_sinks(cache, protect.sinks) - protect.recent;
  if (count <= 0) keep_ends(team, cache, protect.sinks, budget);
  else keep_best(team, cache, protect, count, score);
}
template <Team T, Cache C>
void keep_scored(const T& team, C& cache, Protect protect, int32_t budget) {
  keep_scored(team, cache, protect, budget, [&](int32_t i) { return cache.score(i); });
}

}  // namespace kvreplay
