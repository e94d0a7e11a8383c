#pragma once
#include <cstdint>
#include <filesystem>

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

}  // namespace kvreplay
