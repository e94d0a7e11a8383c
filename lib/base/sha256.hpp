#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/sha256_blocks.hpp"

namespace kvreplay {

// SHA-256 (FIPS 180-4) of bytes that arrive in pieces.
class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  std::string hex();  // call once, at the end: 64 digits

 private:
  sha256::Words state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, sha256::kBlock> waiting_{};  // the first bytes of an incomplete block
  uint64_t bytes_ = 0;
};

}  // namespace kvreplay
