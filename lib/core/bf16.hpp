#pragma once
#include <cstdint>

#include "core/platform.hpp"

namespace kvreplay {

// Numbers of 16 bits with the exponent of a float (bfloat16), as bits. The code uses integers, so that no compiler flag
// can change a value. It is always inlined, so that files for other instruction sets share no function.

[[gnu::always_inline]] KVR_FN inline uint32_t float_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  return __builtin_bit_cast(uint32_t, x);
#endif
}
[[gnu::always_inline]] KVR_FN inline float bits_float(uint32_t x) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(x);
#else
  return __builtin_bit_cast(float, x);
#endif
}

[[gnu::always_inline]] KVR_FN inline float from_bf16(uint16_t x) { return bits_float(uint32_t(x) << 16); }
// Rounds to nearest, ties to even.
[[gnu::always_inline]] KVR_FN inline uint16_t to_bf16(float x) {
  const uint32_t b = float_bits(x);
  const bool nan = (b & 0x7fffffffu) > 0x7f800000u;  // stays NaN
  return uint16_t(nan ? b >> 16 | 0x40u : (b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}

}  // namespace kvreplay
