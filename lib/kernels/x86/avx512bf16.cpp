#include <immintrin.h>

#include <cstdint>

// AVX512_BF16: tiles in memory, whose rows are multiplied as vectors.

namespace kvreplay::kernels {
namespace {

struct Tiles {
  alignas(64) float sums[4][256];
  const uint16_t* from[8];
  int64_t strides[8];
  template <int T>
  void zero() {
    for (float& x : sums[T]) x = 0;
  }
  template <int T>
  void load(const uint16_t* p, int64_t stride) {
    from[T] = p;
    strides[T] = stride;
  }
  template <int C, int A, int B>
  void multiply() {
    __m512 sum[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) sum[i] = _mm512_load_ps(sums[C] + 16 * i);
    for (int r = 0; r < 16; ++r) {
      const __m512i b = _mm512_loadu_si512(from[B] + r * strides[B]);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        int32_t pair;
        __builtin_memcpy(&pair, from[A] + i * strides[A] + 2 * r, 4);
        sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)_mm512_set1_epi32(pair), (__m512bh)b);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_store_ps(sums[C] + 16 * i, sum[i]);
  }
  template <int T>
  void store(float* p, int64_t stride) {
    for (int i = 0; i < 16; ++i) _mm512_storeu_ps(p + i * stride, _mm512_load_ps(sums[T] + 16 * i));
  }
};

}  // namespace
}  // namespace kvreplay::kernels

#include "kernels/tile_kernels.hpp"

namespace kvreplay::kernels {
constinit const TileProduct kAvx512Bf16Product = tile_product;
}
