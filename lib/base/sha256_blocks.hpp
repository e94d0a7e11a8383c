#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

// The inner loop of SHA-256: whole blocks into the state (FIPS 180-4, section 6.2.2).

namespace kvreplay::sha256 {

constexpr size_t kBlock = 64;  // bytes
using Words = std::array<uint32_t, 8>;

// Uses the processor's SHA instructions if it has them.
void compress_blocks(Words& state, const std::byte* blocks, size_t count);
// As compress_blocks(), without these instructions.
void compress_portably(Words& state, const std::byte* blocks, size_t count);

}  // namespace kvreplay::sha256
