#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include "core/platform.hpp"
#include "core/wide.hpp"

// Counter-based random numbers (convention C13): a draw depends on its purpose, never on the order in which draws are
// made. Threads, shards and devices therefore agree.

namespace kvreplay {

// Philox4x32-10 of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011), figure 2.
struct Philox4x32 {
  uint32_t x[4];

  KVR_FN Philox4x32(const uint32_t (&counter)[4], uint32_t key0, uint32_t key1)
      : x{counter[0], counter[1], counter[2], counter[3]} {
    for (int round = 0; round < 10; ++round) {
      const uint64_t a = uint64_t{0xD2511F53u} * x[0];
      const uint64_t b = uint64_t{0xCD9E8D57u} * x[2];
      const uint32_t y[4] = {uint32_t(b >> 32) ^ x[1] ^ key0, uint32_t(b), uint32_t(a >> 32) ^ x[3] ^ key1,
                             uint32_t(a)};
      for (int i = 0; i < 4; ++i) x[i] = y[i];
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
  }

  // Uniform in [0, 1) with 53 bits.
  KVR_FN double uniform() const { return (double(x[0] >> 5) * 67108864.0 + double(x[1] >> 6)) / 9007199254740992.0; }
};

// Eight neighbouring Philox4x32, so that loops over them use vector instructions.
struct PhiloxLanes {
  static constexpr int kLanes = 8;
  uint32_t x[4][kLanes];

  void mix(uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; ++round) {
      uint32_t y[4][kLanes];
      for (int l = 0; l < kLanes; ++l) {
        const uint64_t a = uint64_t{0xD2511F53u} * x[0][l], b = uint64_t{0xCD9E8D57u} * x[2][l];
        y[0][l] = uint32_t(b >> 32) ^ x[1][l] ^ key0, y[1][l] = uint32_t(b);
        y[2][l] = uint32_t(a >> 32) ^ x[3][l] ^ key1, y[3][l] = uint32_t(a);
      }
      for (int i = 0; i < 4; ++i)
        for (int l = 0; l < kLanes; ++l) x[i][l] = y[i][l];
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
  }
  // Signed conversions: there are vector instructions for them.
  double uniform(int l) const {
    return (double(int32_t(x[0][l] >> 5)) * 67108864.0 + double(int32_t(x[1][l] >> 6))) / 9007199254740992.0;
  }
};

// Purposes of draws. The numbers are part of the reproducibility contract.
enum class RngStream : uint32_t {
  subgen_clusters = 1,
  subgen_reservoir = 2,
  sign_walk = 3,
  uniform_sampling = 4,
  keyformer_noise = 5,
  halving_walk = 6,
  halving_flip = 7,
  sketch_matrix = 8,
  pivots = 9,
  k_center_start = 10,
  distance_pairs = 11,
  bootstrap = 12,
  synthetic_traces = 13,
  row_signs = 14,
  row_rotation = 15,
  row_sketch = 16,
  merge_draws = 17,
};

// An array that tests inject in place of counter-based numbers. Draw (round, position, slot) of its stream reads
// values[(round * positions + position) * slots + slot].
struct InjectedArray {
  const double* values = nullptr;
  RngStream stream{};
  int64_t positions = 0, slots = 1;
};

// The random numbers of one kv head.
struct Rng {
  static constexpr int kArrays = 2;
  uint32_t seed = 0, prompt = 0, layer = 0, kv_head = 0;
  InjectedArray injected[kArrays] = {};

  KVR_FN double uniform(RngStream stream, int64_t position, int64_t slot = 0, int64_t round = 0) const {
    for (const InjectedArray& a : injected)
      if (a.values != nullptr && a.stream == stream) return a.values[(round * a.positions + position) * a.slots + slot];
    const uint32_t counter[4] = {uint32_t(slot), uint32_t(position), uint32_t(stream) + 256u * uint32_t(round),
                                 layer * 65536u + kv_head};
    return Philox4x32(counter, seed, prompt).uniform();
  }
  // Draws for many positions at once: out[i] = uniform(stream, positions[i], slot, round).
  void uniforms(RngStream stream, std::span<const int32_t> positions, int64_t slot, int64_t round, double* out) const {
    constexpr size_t kLanes = PhiloxLanes::kLanes;
    const bool given = std::any_of(injected, injected + kArrays, [&](const auto& a) { return a.values != nullptr; });
    const size_t whole = given ? 0 : positions.size() / kLanes * kLanes;
    wide([&, self = *this] {
      for (size_t i = 0; i < whole; i += kLanes) {
        PhiloxLanes lanes;
        for (size_t l = 0; l < kLanes; ++l) {
          lanes.x[0][l] = uint32_t(slot), lanes.x[1][l] = uint32_t(positions[i + l]);
          lanes.x[2][l] = uint32_t(stream) + 256u * uint32_t(round), lanes.x[3][l] = self.layer * 65536u + self.kv_head;
        }
        lanes.mix(self.seed, self.prompt);
        for (size_t l = 0; l < kLanes; ++l) out[i + l] = lanes.uniform(int(l));
      }
    });
    for (size_t i = whole; i < positions.size(); ++i) out[i] = uniform(stream, positions[i], slot, round);
  }
};

}  // namespace kvreplay
