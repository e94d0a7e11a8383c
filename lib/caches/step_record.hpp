#pragma once
#include <cstdint>

#include "core/method_info.hpp"
#include "core/row_counts.hpp"
#include "formats/row_coder.hpp"

// What a device notes of a cache that it replays (caches/device_policy.hpp). Kernels write it.

namespace kvreplay {

// What a step leaves for the cache's ledger.
struct StepRecord {
  RowCounts attended;  // C_t
  RowCounts read;      // what any head reads of it; scored steps of query-time methods
  RowCounts kept;      // S_t, coded
  int32_t evictions;   // so far
  int32_t quantised;   // rows that the row format has changed so far
  bool weighs;         // some head weighs rows that it does not read; scored steps of query-time methods
  ExtraBytes extra;
};

// How a replay ended. What it wrote from the failing step on means nothing.
struct PolicyEnd {
  enum Why : int32_t {
    done,
    denominator,  // zero or not finite: nothing left to attend to
    returned,     // the policy brought back a token that it had evicted
    method,       // Cache::fail: code, at
    bound,        // the cache holds `at` rows, more than was promised
    format,       // the row format cannot hold a row of token `at`: code, a RowCoder::Refusal
  };
  Why why = done;
  int32_t token = -1;  // at whose step; -1: done
  int32_t code = 0, at = 0;
  bool reweighted = false;  // kept prompt tokens stand for others (option reweight)
  int32_t quantised = 0;    // as StepRecord
  CodedNumbers coded = {};
};

}  // namespace kvreplay
