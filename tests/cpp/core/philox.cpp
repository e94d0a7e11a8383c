#include <catch2/catch.hpp>

#include "core/philox.hpp"

using namespace kvreplay;

// Known answers of the authors' Random123 distribution (kat_vectors, philox4x32 10).
TEST_CASE("Philox4x32-10 gives the published known answers", "[core]") {
  const uint32_t zero[4] = {0, 0, 0, 0};
  const Philox4x32 a(zero, 0, 0);
  CHECK(a.x[0] == 0x6627e8d5u);
  CHECK(a.x[1] == 0xe169c58du);
  CHECK(a.x[2] == 0xbc57ac4cu);
  CHECK(a.x[3] == 0x9b00dbd8u);
  const uint32_t pi[4] = {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u};
  const Philox4x32 b(pi, 0xa4093822u, 0x299f31d0u);
  CHECK(b.x[0] == 0xd16cfe09u);
  CHECK(b.x[1] == 0x94fdccebu);
  CHECK(b.x[2] == 0x5001e420u);
  CHECK(b.x[3] == 0x24126ea1u);
}

TEST_CASE("a draw depends on every part of its address", "[core]") {
  const Rng base{1, 2, 3, 4};
  const double u = base.uniform(RngStream::uniform_sampling, 5, 6, 7);
  CHECK(u >= 0);
  CHECK(u < 1);
  CHECK(u == base.uniform(RngStream::uniform_sampling, 5, 6, 7));
  CHECK(u != Rng{9, 2, 3, 4}.uniform(RngStream::uniform_sampling, 5, 6, 7));
  CHECK(u != Rng{1, 9, 3, 4}.uniform(RngStream::uniform_sampling, 5, 6, 7));
  CHECK(u != Rng{1, 2, 9, 4}.uniform(RngStream::uniform_sampling, 5, 6, 7));
  CHECK(u != Rng{1, 2, 3, 9}.uniform(RngStream::uniform_sampling, 5, 6, 7));
  CHECK(u != base.uniform(RngStream::sign_walk, 5, 6, 7));
  CHECK(u != base.uniform(RngStream::uniform_sampling, 9, 6, 7));
  CHECK(u != base.uniform(RngStream::uniform_sampling, 5, 9, 7));
  CHECK(u != base.uniform(RngStream::uniform_sampling, 5, 6, 9));
}

TEST_CASE("injected uniforms are read at their position", "[core]") {
  const double values[] = {0.1, 0.2, 0.3, 0.4};
  Rng rng;
  rng.injected[0] = {values, RngStream::uniform_sampling, 2, 1};
  CHECK(rng.uniform(RngStream::uniform_sampling, 1) == 0.2);
  CHECK(rng.uniform(RngStream::uniform_sampling, 0, 0, 1) == 0.3);
  // Another structure's numbers are not replaced.
  CHECK(rng.uniform(RngStream::sign_walk, 1) == Rng{}.uniform(RngStream::sign_walk, 1));
}

TEST_CASE("numbers drawn for many positions at once are those drawn one by one", "[core]") {
  Rng rng{1, 2, 3, 4};
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < 21; ++i) positions.push_back(i * i);
  std::vector<double> injected(22 * 441 * 2, 0.25), many(positions.size());
  for (const bool given : {false, true}) {
    if (given) {
      for (size_t i = 0; i < injected.size(); ++i) injected[i] = double(i % 97) / 97;
      rng.injected[0] = {injected.data(), RngStream::keyformer_noise, 441, 2};
    }
    rng.uniforms(RngStream::keyformer_noise, positions, 1, 20, many.data());
    for (size_t i = 0; i < positions.size(); ++i)
      CHECK(many[i] == rng.uniform(RngStream::keyformer_noise, positions[i], 1, 20));
  }
}
