#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/bounds/rows.hpp"

// The inputs of the bounds, measured on the keys, queries and values of a trace: all its tokens, so these
// numbers see the future.

namespace kvreplay::app {

struct TraceRequest {
  std::string file, prompt;                // prompt "": the first
  std::vector<int32_t> layers, kv_heads;   // empty: all
  std::optional<int32_t> tokens;           // the first ones; all
  std::vector<double> deltas, deltas_rel;  // radii of clusters, absolute or over the median key distance
  bool heads = true;                       // measure heads at all
};

struct MeasuredHead {
  struct Clusters {
    std::optional<double> delta_rel;
    double delta;
    int64_t clusters;  // that SubGen's rule opens
  };
  int32_t layer, kv_head;
  double scale;        // of the logits
  BoundInputs inputs;  // n, d, v_dim, and largest norms as recorded: query_norm, key_norm, value_norm
  double median_key_distance = 0;
  std::vector<Clusters> clusters;
};
struct MeasuredTrace {
  BoundInputs inputs;  // n, d, v_dim, prompt_tokens, n_layers, n_kv_heads, bytes: of the first selected layer
  std::vector<MeasuredHead> heads;
};
// Throws ConfigError where the trace lacks what is asked for, TraceError where it cannot be read.
MeasuredTrace measured_trace(const TraceRequest& request);

}  // namespace kvreplay::app
