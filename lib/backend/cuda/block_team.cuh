#pragma once
#include "core/team.hpp"

// The threads of one CUDA block as a team. Ties follow convention C8 as in SerialTeam, and every
// reduction runs in an order that does not depend on timing, so a run repeats bit for bit.

namespace kvreplay {

struct BlockTeam {
  static constexpr int kMaxThreads = 1024;
  Scored* scratch;  // [blockDim.x], in shared memory

  __device__ int rank() const { return int(threadIdx.x); }
  __device__ void sync() const { __syncthreads(); }

  template <class F>
  __device__ void each(int32_t n, F f) const {
    for (int32_t i = int32_t(threadIdx.x); i < n; i += int32_t(blockDim.x)) f(i);
    __syncthreads();
  }
  template <class F>
  __device__ double sum(int32_t n, F f) const {
    double s = 0;
    for (int32_t i = int32_t(threadIdx.x); i < n; i += int32_t(blockDim.x)) s += f(i);
    return reduce(Scored{s, 0}, [](Scored a, Scored b) { return Scored{a.score + b.score, 0}; }).score;
  }
  template <class F>
  __device__ int32_t count(int32_t n, F is) const {
    int32_t c = 0;
    for (int32_t i = int32_t(threadIdx.x); i < n; i += int32_t(blockDim.x)) c += is(i) ? 1 : 0;
    return reduce(Scored{0, c}, [](Scored a, Scored b) { return Scored{0, a.index + b.index}; }).index;
  }
  template <class F>
  __device__ Scored largest(int32_t n, F score) const {
    return best(n, score, [](Scored a, Scored b) {
      return a.score > b.score || (a.score == b.score && a.index < b.index);
    });
  }
  template <class F>
  __device__ Scored smallest(int32_t n, F score) const {
    return best(n, score, [](Scored a, Scored b) {
      return a.score < b.score || (a.score == b.score && a.index > b.index);
    });
  }
  // One thread moves: rows are few numbers wide, and a cut happens once a prompt.
  template <class F, class M>
  __device__ int32_t compact(int32_t n, F stays, M move) const {
    __syncthreads();
    if (threadIdx.x == 0) {
      int32_t to = 0;
      for (int32_t i = 0; i < n; ++i) {
        if (!stays(i)) continue;
        if (to != i) move(i, to);
        ++to;
      }
      scratch[0].index = to;
    }
    __syncthreads();
    const int32_t left = scratch[0].index;
    __syncthreads();
    return left;
  }
  template <class T>
  __device__ void close_gap(T* array, int32_t gap, int32_t n) const {
    __syncthreads();
    for (int32_t first = gap; first + 1 < n; first += int32_t(blockDim.x)) {
      const int32_t i = first + int32_t(threadIdx.x);
      const bool mine = i + 1 < n;
      T next{};
      if (mine) next = array[i + 1];
      __syncthreads();
      if (mine) array[i] = next;
      __syncthreads();
    }
  }

 private:
  // A tree over the threads in shared memory; blockDim.x must be a power of two.
  template <class Combine>
  __device__ Scored reduce(Scored mine, Combine combine) const {
    scratch[threadIdx.x] = mine;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
      if (threadIdx.x < half)
        scratch[threadIdx.x] = combine(scratch[threadIdx.x], scratch[threadIdx.x + half]);
      __syncthreads();
    }
    const Scored all = scratch[0];
    __syncthreads();
    return all;
  }
  template <class F, class Before>
  __device__ Scored best(int32_t n, F score, Before before) const {
    Scored mine{0, -1};
    for (int32_t i = int32_t(threadIdx.x); i < n; i += int32_t(blockDim.x))
      mine = pick(mine, {score(i), i}, before);
    return reduce(mine, [&](Scored a, Scored b) { return pick(a, b, before); });
  }
  template <class Before>
  __device__ static Scored pick(Scored a, Scored b, Before before) {
    if (a.index < 0) return b;
    return b.index >= 0 && before(b, a) ? b : a;
  }
};

}  // namespace kvreplay
