#pragma once
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/platform.hpp"

// The loops of a policy: over all rows, sums, counts, arg-maxes. Policies are written in them, so the order of sums and
// the rules for ties stand in one place, and loops over rows use vector instructions.
//
// largest() and smallest() ignore NaN unless it is the first score; then NaN is the result.

namespace kvreplay {

struct Scored {
  double score;
  int32_t index;  // -1: there was nothing to choose from
};

template <class T>
concept Team = requires(const T team, double (*f)(int32_t), bool (*is)(int32_t), void (*put)(int32_t, double),
                        int32_t* array) {
  team.each(1, f);
  { team.sum(1, f) } -> std::same_as<double>;
  { team.count(1, is) } -> std::same_as<int32_t>;
  { team.smallest(1, f) } -> std::same_as<Scored>;
  { team.largest(1, f) } -> std::same_as<Scored>;
  { team.compact(1, is, f, put) } -> std::same_as<int32_t>;
  team.close_gap(array, 0, 1);
};

struct SerialTeam {
  template <class F>
  void each(int32_t n, F f) const {
    for (int32_t i = 0; i < n; ++i) f(i);
  }
  template <class F>
  double sum(int32_t n, F f) const {
    constexpr int32_t kLanes = 8;
    double lanes[kLanes] = {}, s = 0;
    int32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) KVR_SIMD for (int32_t l = 0; l < kLanes; ++l) lanes[l] += f(i + l);
    for (const double x : lanes) s += x;
    for (; i < n; ++i) s += f(i);
    return s;
  }
  template <class F>
  int32_t count(int32_t n, F is) const {
    int32_t c = 0;
    for (int32_t i = 0; i < n; ++i) c += is(i) ? 1 : 0;
    return c;
  }
  // Convention C8: among equal scores, largest() returns the lowest index and smallest() the highest.
  template <class F>
  Scored largest(int32_t n, F score) const {
    return best(n, score, [](double s, double so_far) { return s > so_far; });
  }
  template <class F>
  Scored smallest(int32_t n, F score) const {
    return best(n, score, [](double s, double so_far) { return s <= so_far; });
  }
  // Calls put(j, take(i)) for the j-th i that stays, in order; returns how many stay. Elements may move towards the
  // front in place: none is overwritten before it was taken.
  template <class F, class G, class P>
  int32_t compact(int32_t n, F stays, G take, P put) const {
    int32_t to = 0;
    for (int32_t i = 0; i < n; ++i)
      if (stays(i)) put(to++, take(i));
    return to;
  }
  // Removes element `gap` of array[0..n) and moves the later ones down.
  template <class T>
  void close_gap(T* array, int32_t gap, int32_t n) const {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memmove(array + gap, array + gap + 1, size_t(n - gap - 1) * sizeof(T));
  }

 private:
  // Optimised for the usual case that no score of a few neighbours replaces the best so far.
  template <class F, class B>
  static Scored best(int32_t n, F score, B replaces) {
    constexpr int32_t kAtOnce = 8;
    if (n <= 0) return {0, -1};
    Scored found{score(0), 0};
    int32_t i = 1;
    for (; i + kAtOnce <= n; i += kAtOnce) {
      double s[kAtOnce];
      int32_t better = 0;
      KVR_SIMD for (int32_t l = 0; l < kAtOnce; ++l) s[l] = score(i + l);
      KVR_SIMD_SUM(better)
      for (int32_t l = 0; l < kAtOnce; ++l) better += replaces(s[l], found.score) ? 1 : 0;
      if (better == 0) continue;
      for (int32_t l = 0; l < kAtOnce; ++l)
        if (replaces(s[l], found.score)) found = {s[l], i + l};
    }
    for (; i < n; ++i)
      if (const double s = score(i); replaces(s, found.score)) found = {s, i};
    return found;
  }
};
static_assert(Team<SerialTeam>);

}  // namespace kvreplay
