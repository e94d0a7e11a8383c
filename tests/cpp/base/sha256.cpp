#include "base/sha256.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

using namespace kvreplay;

// Expected sums: FIPS 180-4's examples, and `sha256sum` for the others.

namespace {
std::string sum_of(const std::string& text) {
  Sha256 sha;
  sha.update(text);
  return sha.hex();
}
}  // namespace

TEST_CASE("SHA-256 gives the sums of the standard's examples") {
  CHECK(sum_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sum_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sum_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sum_of(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 does not depend on how the bytes are cut, around every length of a block's end") {
  for (size_t n = 50; n < 140; ++n) {
    const std::string text(n, 'x');
    for (const size_t cut : {size_t{1}, size_t{55}, size_t{64}, n - 1}) {
      if (cut > n) continue;
      Sha256 sha;
      sha.update(text.substr(0, cut));
      sha.update(text.substr(cut));
      CHECK(sha.hex() == sum_of(text));
    }
  }
  CHECK(sum_of(std::string(55, 'x')) == "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072");
  CHECK(sum_of(std::string(56, 'x')) == "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e");
  CHECK(sum_of(std::string(64, 'x')) == "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
}

TEST_CASE("SHA-256 has the same state after some blocks with the processor's own instructions and without them") {
  std::vector<std::byte> blocks(7 * sha256::kBlock);
  uint32_t number = 1;
  for (std::byte& byte : blocks) byte = std::byte((number = number * 1664525 + 1013904223) >> 24);
  sha256::Words some, others;
  for (size_t i = 0; i < some.size(); ++i) some[i] = others[i] = uint32_t(0x9e3779b9 * (i + 1));
  sha256::compress_blocks(some, blocks.data(), 7);
  sha256::compress_portably(others, blocks.data(), 7);
  CHECK(some == others);
}
