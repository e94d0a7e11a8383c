#pragma once
#include <cstdint>

#include "core/method_info.hpp"
#include "core/row_counts.hpp"

// What a device notes of a cache that it replays (chain.hpp). Kernels write it.

namespace kvreplay {

// What a step leaves for the account (replay/lane_account.hpp).
struct ChainStep {
  RowCounts attended;  // C_t
  RowCounts read;      // what any head reads of it; scored steps of query-time methods
  RowCounts kept;      // S_t, coded
  int32_t evictions;   // so far
  int32_t quantised;   // rows that the row format has changed so far
  bool weighs;         // some head weighs rows that it does not read; scored steps of query-time methods
  ExtraBytes extra_bytes;
};

// One query head in one scored row.
struct ChainRow {
  int32_t attended;  // tokens
  bool plain;        // as RowMeasure
  double spread;     // ErrorBound::spread where it grows with what was seen, else kUnset
};

// How a chain ended. What it wrote from the failing step on means nothing.
struct ChainEnd {
  enum Why : int32_t {
    done,
    denominator,  // zero or not finite: nothing left to attend to
    returned,     // the policy brought back a token that it had evicted
    method,       // Cache::fail: code, at
    bound,        // the cache holds `at` rows, more than was promised
    format,       // the row format cannot hold a row of token `at`
  };
  Why why = done;
  int32_t token = -1;  // at whose step; -1: done
  int32_t code = 0, at = 0;
  bool reweighted = false;  // kept prompt tokens stand for others (axis reweight)
  int32_t quantised = 0;    // as ChainStep
};

}  // namespace kvreplay
