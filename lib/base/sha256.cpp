#include "base/sha256.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace kvreplay {
namespace {

using Words = std::array<uint32_t, 8>;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr uint32_t kRound[64] = {
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

// FIPS 180-4, section 6.2.2. The 64 words of the schedule are made 16 at a time, each in the place of the one that is
// 16 rounds old.
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

void Sha256::update(std::span<const std::byte> bytes) {
  const size_t held = size_t(bytes_ % kBlock);
  bytes_ += bytes.size();
  if (held > 0) {
    const size_t taken = std::min(kBlock - held, bytes.size());
    std::copy_n(bytes.data(), taken, waiting_.data() + held);
    bytes = bytes.subspan(taken);
    if (held + taken < kBlock) return;
    compress(state_, waiting_.data());
  }
  for (; bytes.size() >= kBlock; bytes = bytes.subspan(kBlock)) compress(state_, bytes.data());
  std::copy_n(bytes.data(), bytes.size(), waiting_.data());
}

std::string Sha256::hex() {
  const uint64_t bits = 8 * bytes_;
  const size_t held = size_t(bytes_ % kBlock), zeros = (held < 56 ? 55 : 119) - held;
  std::array<std::byte, 2 * kBlock> end{std::byte{0x80}};
  for (size_t i = 0; i < 8; ++i) end[1 + zeros + i] = std::byte(bits >> (56 - 8 * i));
  update(std::span(end).first(zeros + 9));
  return fmt::format("{:08x}", fmt::join(state_, ""));
}

}  // namespace kvreplay
