#pragma once
#include <type_traits>

#include "core/platform.hpp"

namespace kvreplay {

// Whether wide() and wide_fused() may use the machine's wider vectors. Set before threads start (replay/runner.cpp:
// KVREPLAY_ISA=portable uses none).
struct WiderVectors {
  static inline bool allowed = true;
};

// sum + a b; fused: rounded once.
template <bool fused>
double multiply_add(double a, double b, double sum) {
  if constexpr (fused) return __builtin_fma(a, b, sum);
  else return sum + a * b;
}

// wide(f) runs f(), a loop over fixed lanes, in wider vectors where the machine has them. All code that f calls is
// compiled twice. It has no sum whose order depends on the width of a vector and no fused operation, so the results are
// equal.
// wide_fused(f) runs f(std::bool_constant<fused>), which only uses multiply_add<fused> of products that are exact in
// double, such as products of two floats. The results are therefore equal, too. (Where machines fuse, a compiler may
// fuse any operation.)
#if defined(__CUDACC__) || !defined(__x86_64__) || !defined(__GNUC__) || !defined(__OPTIMIZE__)
template <class F>
void wide(F f) {
  f();
}
template <class F>
void wide_fused(F f) {
  f(std::false_type{});
}
#else
template <class F>
[[gnu::target("avx2"), gnu::flatten, gnu::noinline]] void in_wider_vectors(F f) {
  f();
}
template <class F>
[[gnu::target("avx2,fma"), gnu::flatten, gnu::noinline]] void in_wider_vectors_fused(F f) {
  f(std::true_type{});
}
template <class F>
void wide(F f) {
  if (WiderVectors::allowed && __builtin_cpu_supports("avx2")) in_wider_vectors(f);
  else f();
}
template <class F>
void wide_fused(F f) {
  const bool here = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (WiderVectors::allowed && here) in_wider_vectors_fused(f);
  else f(std::false_type{});
}
#endif

}  // namespace kvreplay
