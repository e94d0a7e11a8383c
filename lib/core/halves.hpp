#pragma once
#include <bit>
#include <cstdint>

#include "core/bf16.hpp"

// Conversion of IEEE 754 float16 bits; core/bf16.hpp does the same for bfloat16. Widening is exact; narrowing rounds to
// nearest, ties to even. Uses integers so that no compiler flag (flush to zero, fast math) can change a value.

namespace kvreplay {

KVR_FN inline float widen_float16(uint16_t bits) {
  const uint32_t sign = (uint32_t{bits} & 0x8000u) << 16, magnitude = bits & 0x7FFFu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);                    // the exponents' biases differ by 112
  const uint32_t special = (magnitude << 13) | (0xFFu << 23);                  // infinity and NaN
  const uint32_t tiny = float_bits(static_cast<float>(magnitude) * 0x1p-24f);  // subnormal or zero
  return bits_float(sign | (magnitude >= 0x7C00u ? special : magnitude < 0x0400u ? tiny : normal));
}

inline uint16_t narrow_float16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7FFFFFFFu;
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 and more round to infinity
  uint32_t from = magnitude - (112u << 23), drop = 13;
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24
    const uint32_t exponent = magnitude >> 23;
    if (exponent < 102) return sign;  // below 2^-25
    from = (magnitude & 0x007FFFFFu) | 0x00800000u;
    drop = 126 - exponent;
  }
  const uint32_t half = 1u << (drop - 1), odd = (from >> drop) & 1u;
  return static_cast<uint16_t>(sign | ((from + half - 1 + odd) >> drop));
}

}  // namespace kvreplay
