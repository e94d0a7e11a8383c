#include "base/sha256.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay {

void Sha256::update(std::span<const std::byte> bytes) {
  const size_t held = size_t(bytes_ % sha256::kBlock);
  bytes_ += bytes.size();
  if (held > 0) {
    const size_t taken = std::min(sha256::kBlock - held, bytes.size());
    std::copy_n(bytes.data(), taken, waiting_.data() + held);
    bytes = bytes.subspan(taken);
    if (held + taken < sha256::kBlock) return;
    sha256::compress_blocks(state_, waiting_.data(), 1);
  }
  const size_t whole = bytes.size() / sha256::kBlock;
  sha256::compress_blocks(state_, bytes.data(), whole);
  bytes = bytes.subspan(whole * sha256::kBlock);
  std::copy_n(bytes.data(), bytes.size(), waiting_.data());
}

std::string Sha256::hex() {
  const uint64_t bits = 8 * bytes_;
  const size_t held = size_t(bytes_ % sha256::kBlock), zeros = (held < 56 ? 55 : 119) - held;
  std::array<std::byte, 2 * sha256::kBlock> end{std::byte{0x80}};
  for (size_t i = 0; i < 8; ++i) end[1 + zeros + i] = std::byte(bits >> (56 - 8 * i));
  update(std::span(end).first(zeros + 9));
  return fmt::format("{:08x}", fmt::join(state_, ""));
}

}  // namespace kvreplay
