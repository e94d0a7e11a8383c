#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include "core/platform.hpp"
#include "core/wide.hpp"

// Counter-based random numbers (convention C13): a draw depends on its purpose, never on the order in which draws are
// made. Threads, shards and devices therefore agree.

namespace kvreplay {

// Philox4x32-10 of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011), figure 2. take_round(key0,
// key1) applies philox_round() to every counter.
KVR_FN inline void philox_round(uint32_t& x0, uint32_t& x1, uint32_t& x2, uint32_t& x3, uint32_t key0, uint32_t key1) {
  const uint64_t a = uint64_t{0xD2511F53u} * x0, b = uint64_t{0xCD9E8D57u} * x2;
  x0 = uint32_t(b >> 32) ^ x1 ^ key0, x1 = uint32_t(b);
  x2 = uint32_t(a >> 32) ^ x3 ^ key1, x3 = uint32_t(a);
}
KVR_FN inline void philox_rounds(uint32_t key0, uint32_t key1, auto take_round) {
  for (int round = 0; round < 10; ++round) {
    take_round(key0, key1);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}
// Uniform in [0, 1) with 53 bits. Signed conversions: there are vector instructions for them.
KVR_FN inline double philox_uniform(uint32_t x0, uint32_t x1) {
  return (double(int32_t(x0 >> 5)) * 67108864.0 + double(int32_t(x1 >> 6))) / 9007199254740992.0;
}

struct Philox4x32 {
  uint32_t x[4];

  KVR_FN Philox4x32(const uint32_t (&counter)[4], uint32_t key0, uint32_t key1)
      : x{counter[0], counter[1], counter[2], counter[3]} {
    philox_rounds(key0, key1, [&](uint32_t k0, uint32_t k1) { philox_round(x[0], x[1], x[2], x[3], k0, k1); });
  }
  KVR_FN double uniform() const { return philox_uniform(x[0], x[1]); }
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
  random_cuts = 18,
  weighted_cuts = 19,
  residual_sample = 20,
  hash_planes = 21,
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

  bool has_injected() const {
    return std::any_of(injected, injected + kArrays, [](const auto& a) { return a.values != nullptr; });
  }
  KVR_FN double uniform(RngStream stream, int64_t position, int64_t slot = 0, int64_t round = 0) const {
    for (const InjectedArray& a : injected)
      if (a.values != nullptr && a.stream == stream) return a.values[(round * a.positions + position) * a.slots + slot];
    const uint32_t counter[4] = {uint32_t(slot), uint32_t(position), purpose(stream, round), place()};
    return Philox4x32(counter, seed, prompt).uniform();
  }
  // Draws for many positions at once: out[i] = uniform(stream, positions[i], slot, round). Eight counters lie side by
  // side, so that loops over them use vector instructions.
  void uniforms(RngStream stream, std::span<const int32_t> positions, int64_t slot, int64_t round, double* out) const {
    constexpr size_t kLanes = 8;
    const size_t whole = has_injected() ? 0 : positions.size() / kLanes * kLanes;
    wide([=, self = *this, from = positions.data()] {
      for (size_t i = 0; i < whole; i += kLanes) {
        uint32_t x[4][kLanes];
        for (size_t l = 0; l < kLanes; ++l)
          x[0][l] = uint32_t(slot), x[1][l] = uint32_t(from[i + l]), x[2][l] = self.purpose(stream, round),
          x[3][l] = self.place();
        philox_rounds(self.seed, self.prompt, [&](uint32_t k0, uint32_t k1) {
          for (size_t l = 0; l < kLanes; ++l) philox_round(x[0][l], x[1][l], x[2][l], x[3][l], k0, k1);
        });
        for (size_t l = 0; l < kLanes; ++l) out[i + l] = philox_uniform(x[0][l], x[1][l]);
      }
    });
    for (size_t i = whole; i < positions.size(); ++i) out[i] = uniform(stream, positions[i], slot, round);
  }

 private:
  KVR_FN static uint32_t purpose(RngStream stream, int64_t round) { return uint32_t(stream) + 256u * uint32_t(round); }
  KVR_FN uint32_t place() const { return layer * 65536u + kv_head; }
};

}  // namespace kvreplay
