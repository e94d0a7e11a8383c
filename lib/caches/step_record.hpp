#pragma once
#include <cstdint>

#include "core/method_info.hpp"
#include "core/row_format.hpp"
#include "formats/row_coder.hpp"

// A device's record of a cache that it replays (caches/device_policy.hpp). Kernels write it.

namespace kvreplay {

// The data of a step for the cache's ledger.
struct StepRecord {
  RowCounts attended;  // C_t
  RowCounts read;      // rows of C_t that any head reads; only for scored steps of query-time methods
  RowCounts kept;      // S_t, coded
  int32_t evictions;   // number so far
  int32_t quantised;   // rows changed by the row format so far
  bool weighs;         // a head weighs rows that it does not read; only for scored steps of query-time methods
  ExtraBytes extra;
};

// How a replay ended. Everything written from the failing step on is invalid.
struct PolicyEnd {
  enum Why : int32_t {
    done,
    denominator,  // zero or not finite: no token left to attend to
    returned,     // the policy brought back a token that it had evicted
    method,       // Cache::fail: `code`, `at`
    bound,        // the cache holds `at` rows, more than its bound
    format,       // the row format cannot store the row of token `at`; `code` is a RowCoder::Refusal
  };
  Why why = done;
  int32_t token = -1;  // failing step; -1: done
  int32_t code = 0, at = 0;
  bool reweighted = false;  // kept prompt tokens are reweighted to represent others (option reweight)
  int32_t quantised = 0;    // as StepRecord
  CodedNumbers coded = {};
};

}  // namespace kvreplay
