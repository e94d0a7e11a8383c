#include <immintrin.h>

#include <cstdint>

// AVX2 and FMA: 16 registers of 32 bytes.

namespace kvreplay::kernels {
namespace {

template <class Real>
struct Vector;

// Mask of lanes [0, n) of 8: from element 8 - n on there are n times all ones.
alignas(64) constexpr int32_t kFirst[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

template <>
struct Vector<double> {
  using Raw = __m256d;
  typedef uint64_t Whole __attribute__((vector_size(32)));
  static constexpr int32_t kLanes = 4, kRegisters = 16;
  static Raw fma(Raw a, Raw b, Raw c) { return _mm256_fmadd_pd(a, b, c); }
  static __m256i first(int32_t n) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kFirst + 8 - 2 * n)); }
  static Raw load_first(const double* p, int32_t n) { return _mm256_maskload_pd(p, first(n)); }
  static void store_first(double* p, Raw x, int32_t n) { _mm256_maskstore_pd(p, first(n), x); }
  static void widen_add(Raw x, Raw& low, Raw&) { low += x; }
};

template <>
struct Vector<float> {
  using Raw = __m256;
  typedef uint32_t Whole __attribute__((vector_size(32)));
  static constexpr int32_t kLanes = 8, kRegisters = 16;
  static Raw fma(Raw a, Raw b, Raw c) { return _mm256_fmadd_ps(a, b, c); }
  static __m256i first(int32_t n) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kFirst + 8 - n)); }
  static Raw load_first(const float* p, int32_t n) { return _mm256_maskload_ps(p, first(n)); }
  static void store_first(float* p, Raw x, int32_t n) { _mm256_maskstore_ps(p, first(n), x); }
  static void widen_add(Raw x, __m256d& low, __m256d& high) {
    low += _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    high += _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
  }
};

}  // namespace
}  // namespace kvreplay::kernels

#include "kernels/vector_kernels.hpp"

namespace kvreplay::kernels {
constinit const Table kAvx2 = table_of_this_width("avx2");
}
