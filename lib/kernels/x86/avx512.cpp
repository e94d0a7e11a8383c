#include <immintrin.h>

#include <cstdint>

// AVX-512 F, BW, DQ and VL: 32 registers of 64 bytes.

namespace kvreplay::kernels {
namespace {

template <class Real>
struct Vector;

template <>
struct Vector<double> {
  using Raw = __m512d;
  typedef uint64_t Whole __attribute__((vector_size(64)));
  static constexpr int32_t kLanes = 8, kRegisters = 32;
  static Raw fma(Raw a, Raw b, Raw c) { return _mm512_fmadd_pd(a, b, c); }
  static Raw scale(Raw p, Raw whole) { return _mm512_scalef_pd(p, whole); }
  static __mmask8 first(int32_t n) { return __mmask8((1u << n) - 1); }
  static Raw load_first(const double* p, int32_t n) { return _mm512_maskz_loadu_pd(first(n), p); }
  static void store_first(double* p, Raw x, int32_t n) { _mm512_mask_storeu_pd(p, first(n), x); }
  static void widen_add(Raw x, Raw& low, Raw&) { low += x; }
};

template <>
struct Vector<float> {
  using Raw = __m512;
  typedef uint32_t Whole __attribute__((vector_size(64)));
  static constexpr int32_t kLanes = 16, kRegisters = 32;
  static Raw fma(Raw a, Raw b, Raw c) { return _mm512_fmadd_ps(a, b, c); }
  static Raw scale(Raw p, Raw whole) { return _mm512_scalef_ps(p, whole); }
  static __mmask16 first(int32_t n) { return __mmask16((1u << n) - 1); }
  static Raw load_first(const float* p, int32_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_first(float* p, Raw x, int32_t n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static void widen_add(Raw x, __m512d& low, __m512d& high) {
    low += _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    high += _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
  }
};

}  // namespace
}  // namespace kvreplay::kernels

#include "kernels/vector_kernels.hpp"

namespace kvreplay::kernels {
constinit const Table kAvx512 = table_of_this_width("avx512");
}
