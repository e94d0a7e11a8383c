#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/bounds/rows.hpp"

// Measures the inputs of the bounds on the keys, queries and values of a trace. All its tokens are used, so these
// numbers see the future.

namespace kvreplay::app {

struct TraceRequest {
  std::string file, prompt;                // prompt "": the first
  std::vector<int32_t> layers, kv_heads;   // empty: all
  std::optional<int32_t> tokens;           // number of first tokens; empty: all
  std::vector<double> deltas, deltas_rel;  // radii of clusters, absolute or relative to the median key distance
  bool heads = true;                       // false: measure no heads
};

struct MeasuredHead {
  struct Clusters {
    std::optional<double> delta_rel;
    double delta;
    int64_t clusters;  // number that SubGen's rule opens
  };
  int32_t layer, kv_head;
  double scale;        // scale of the logits
  BoundInputs inputs;  // n, d, v_dim, and largest norms as recorded: query_norm, key_norm, value_norm
  double median_key_distance = 0;
  std::vector<Clusters> clusters;
};
struct MeasuredTrace {
  BoundInputs inputs;  // n, d, v_dim, prompt_tokens, n_layers, n_kv_heads, bytes: those of the first selected layer
  std::vector<MeasuredHead> heads;
};
// Throws ConfigError if the trace lacks a requested part, TraceError if it cannot be read.
MeasuredTrace measured_trace(const TraceRequest& request);

}  // namespace kvreplay::app
