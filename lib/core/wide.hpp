#pragma once
#include "core/platform.hpp"

namespace kvreplay {

// f(), a loop over fixed lanes, in wider vectors where the machine has them. Everything f calls is compiled
// twice; it holds no sum whose order follows the width of a vector and no fused operation, so its numbers are
// the same.
#if defined(__CUDACC__) || !defined(__x86_64__) || !defined(__GNUC__) || !defined(__OPTIMIZE__)
template <class F>
KVR_FN void wide(F f) {
  f();
}
#else
template <class F>
[[gnu::target("avx2"), gnu::flatten, gnu::noinline]] void in_wider_vectors(F f) {
  f();
}
template <class F>
void wide(F f) {
  if (__builtin_cpu_supports("avx2")) in_wider_vectors(f);
  else f();
}
#endif

}  // namespace kvreplay
