#pragma once
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/platform.hpp"

// A team is the set of threads that replay one cache: one CPU thread, or one CUDA block
// (backend/cuda/block_team.cuh). Policies are written against the concept; every operation ends with
// all threads in step, and every reduction gives each thread the same result.

namespace kvreplay {

struct Scored {
  double score;
  int32_t index;  // -1: there was nothing to choose from
};

template <class T>
concept Team = requires(const T team, double (*f)(int32_t), bool (*is)(int32_t),
                        void (*move)(int32_t, int32_t), int32_t* array) {
  { team.rank() } -> std::convertible_to<int>;
  team.sync();
  team.each(1, f);
  { team.sum(1, f) } -> std::same_as<double>;
  { team.count(1, is) } -> std::same_as<int32_t>;
  { team.smallest(1, f) } -> std::same_as<Scored>;
  { team.largest(1, f) } -> std::same_as<Scored>;
  { team.compact(1, is, move) } -> std::same_as<int32_t>;
  team.close_gap(array, 0, 1);
};

struct SerialTeam {
  KVR_FN static constexpr int rank() { return 0; }
  KVR_FN static constexpr void sync() {}

  template <class F>
  KVR_FN void each(int32_t n, F f) const {
    for (int32_t i = 0; i < n; ++i) f(i);
  }
  template <class F>
  KVR_FN double sum(int32_t n, F f) const {
    double s = 0;
    for (int32_t i = 0; i < n; ++i) s += f(i);
    return s;
  }
  template <class F>
  KVR_FN int32_t count(int32_t n, F is) const {
    int32_t c = 0;
    for (int32_t i = 0; i < n; ++i) c += is(i) ? 1 : 0;
    return c;
  }
  // Convention C8: among equal scores the largest is the lowest index, the smallest the highest.
  template <class F>
  KVR_FN Scored largest(int32_t n, F score) const {
    Scored best{0, -1};
    for (int32_t i = 0; i < n; ++i)
      if (const double s = score(i); best.index < 0 || s > best.score) best = {s, i};
    return best;
  }
  template <class F>
  KVR_FN Scored smallest(int32_t n, F score) const {
    Scored best{0, -1};
    for (int32_t i = 0; i < n; ++i)
      if (const double s = score(i); best.index < 0 || s <= best.score) best = {s, i};
    return best;
  }
  // Moves the elements that stay to the front, in order; returns how many stayed.
  template <class F, class M>
  KVR_FN int32_t compact(int32_t n, F stays, M move) const {
    int32_t to = 0;
    for (int32_t i = 0; i < n; ++i) {
      if (!stays(i)) continue;
      if (to != i) move(i, to);
      ++to;
    }
    return to;
  }
  // Removes element `gap` of array[0..n) and moves the later ones down.
  template <class T>
  KVR_FN void close_gap(T* array, int32_t gap, int32_t n) const {
    static_assert(std::is_trivially_copyable_v<T>);
#if defined(__CUDA_ARCH__)
    for (int32_t i = gap; i + 1 < n; ++i) array[i] = array[i + 1];
#else
    std::memmove(array + gap, array + gap + 1, size_t(n - gap - 1) * sizeof(T));
#endif
  }
};
static_assert(Team<SerialTeam>);

}  // namespace kvreplay
