#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "core/philox.hpp"
#include "trace/trace.hpp"

namespace kvreplay {

// Options of synthetic traces with planted structure (structure 13 of the counter-based generator).
struct SynthOptions {
  int64_t tokens = 1024, prompt = 768;
  int32_t layers = 1, q_heads = 9, kv_heads = 3, head_dim = 64, v_head_dim = 64;
  int32_t clusters = 24;         // topics that the keys drift through; 0: isotropic keys
  double cluster_spread = 0.7;   // standard deviation within a topic, in units of a key's coordinate
  int32_t sinks = 1;             // first tokens that every query attends to
  double sink_strength = 8;      // their logit advantage
  double heavy_share = 0.01;     // share of tokens that many queries attend to
  double heavy_strength = 3;     // their logit advantage
  double key_norm = 1;           // factor on all keys, divided out of the queries
  double query_norm = 1;         // factor on all queries and therefore on all logits
  double value_norm_spread = 0;  // standard deviation of ln ||v||
  int32_t duplicates = 0;        // every `duplicates`-th token repeats an earlier key and value; 0: none
  uint64_t seed = 0;
  bool rope = true;  // rotate q and k (theta 1e4), so that positions can be reassigned
  enum class Type { float32, float16, bfloat16 } type = Type::float32;
  bool with_out = false;  // also write the exact attention output
};
// Writes `path` whole or not at all. Throws ConfigError for bad options, OutputError if writing fails.
void write_synthetic_trace(const SynthOptions& options, const std::filesystem::path& path);

// One kv head of a synthetic trace, token by token. Every number is a function of (seed, layer, head, token), so a
// shorter trace is a prefix of a longer one.
//
// Keys drift through topics (Gaussian clusters), and queries look for the current topic. One pair of coordinates is
// reserved: only there do queries meet the sinks and the heavy hitters, so their logit advantage is exact. It is the
// pair that rotates slowest, and it is planted after the rotation. Queries are divided by key_norm, so large keys do
// not change the attention. query_norm scales the queries, and with them every logit advantage.
class PlantedHead {
 public:
  PlantedHead(const SynthOptions& options, const Rope* rope, int32_t layer, int32_t kv_head);

  void key(int64_t token, std::span<float> into) const;
  void value(int64_t token, std::span<float> into) const;
  void query(int32_t member, int64_t token, std::span<float> into) const;  // query head `member` of the group

 private:
  enum class Purpose : int64_t { key, value, topic, centre, value_centre, value_norm, heavy, repeated, query };

  double uniform(Purpose purpose, int64_t position, int64_t slot = 0, int32_t member = 0) const;
  void normals(Purpose purpose, int64_t position, int32_t member, std::span<double> into) const;
  int32_t topic(int64_t token) const;
  int64_t original(int64_t token) const;  // the token that `token` repeats, or itself
  bool is_heavy(int64_t token) const;
  void rotate(int64_t position, std::span<double> vector) const;
  std::span<const double> centre(const std::vector<double>& centres, int64_t token, size_t width) const;

  const SynthOptions& options_;
  const Rope* rope_;
  Rng draws_;
  double scaling_;
  size_t sink_axis_, heavy_axis_;
  bool axes_reserved_;
  std::vector<double> key_centres_, value_centres_;  // [clusters, width]
};

}  // namespace kvreplay
