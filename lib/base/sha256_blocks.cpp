#include "base/sha256_blocks.hpp"

#include <bit>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace kvreplay::sha256 {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
alignas(16) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const std::byte* at) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | uint32_t(at[i]);
  return word;
}

// FIPS 180-4, section 6.2.2. The 64 words of the schedule are computed 16 at a time; each replaces the word from 16
// rounds before.
void compress(Words& state, const std::byte* block) {
  uint32_t w[16];
  for (int i = 0; i < 16; ++i) w[i] = big_endian(block + 4 * i);
  auto [a, b, c, d, e, f, g, h] = state;
  for (int t = 0; t < 64; ++t) {
    if (t >= 16) {
      const uint32_t x = w[(t + 1) & 15], y = w[(t + 14) & 15];
      w[t & 15] += (std::rotr(x, 7) ^ std::rotr(x, 18) ^ (x >> 3)) + w[(t + 9) & 15] +
                   (std::rotr(y, 17) ^ std::rotr(y, 19) ^ (y >> 10));
    }
    const uint32_t first =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + kRound[t] + w[t & 15];
    const uint32_t second = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const uint32_t added[] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += added[i];
}

}  // namespace

void compress_portably(Words& state, const std::byte* blocks, size_t count) {
  for (; count > 0; --count, blocks += kBlock) compress(state, blocks);
}

#if defined(__x86_64__)
namespace {

// The instructions expect the state as (a, b, e, f) and (c, d, g, h), each four words from the last to the first, and
// process two rounds at a time.
[[gnu::target("sha,sse4.1")]] void compress_in_hardware(Words& state, const std::byte* blocks, size_t count) {
  const __m128i big_endian_words = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i dcba = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state.data()));
  __m128i hgfe = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state.data() + 4));
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (; count > 0; --count, blocks += kBlock) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i)
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks) + i), big_endian_words);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {  // four rounds each
      if (i >= 4) {
        const __m128i last = w[(i + 3) & 3], before = w[(i + 2) & 3];
        const __m128i early = _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]);
        w[i & 3] = _mm_sha256msg2_epu32(_mm_add_epi32(early, _mm_alignr_epi8(last, before, 4)), last);
      }
      const __m128i added = _mm_add_epi32(w[i & 3], _mm_load_si128(reinterpret_cast<const __m128i*>(kRound) + i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(added, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before), cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  dcba = _mm_blend_epi16(feba, dchg, 0xf0), hgfe = _mm_alignr_epi8(dchg, feba, 8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data()), dcba);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data() + 4), hgfe);
}

bool has_hardware() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kSha = 1u << 29;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kSha) != 0 && __builtin_cpu_supports("sse4.1");
}

}  // namespace

void compress_blocks(Words& state, const std::byte* blocks, size_t count) {
  static const auto way = has_hardware() ? compress_in_hardware : compress_portably;
  way(state, blocks, count);
}
#else
void compress_blocks(Words& state, const std::byte* blocks, size_t count) { compress_portably(state, blocks, count); }
#endif

}  // namespace kvreplay::sha256
