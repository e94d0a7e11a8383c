#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/philox.hpp"
#include "trace/synth.hpp"
#include "trace/trace.hpp"

// One kv head of a synthetic trace, token by token. Every number is a function of (seed, layer, head, token), so a
// shorter trace is a prefix of a longer one.
//
// Keys drift through topics (Gaussian clusters), and queries look for the current topic. One pair of coordinates is
// reserved: only there do queries meet the sinks and the heavy hitters, so their logit advantage is exact. It is the
// pair that rotates slowest, and it is planted after the rotation. Queries are divided by key_norm, so large keys do
// not change the attention. query_norm scales the queries, and with them every logit advantage.

namespace kvreplay {

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
