#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "caches/step_record.hpp"
#include "catalog/policy_table.hpp"
#include "catalog/token_lists.hpp"
#include "core/policy.hpp"
#include "core/step.hpp"
#include "formats/row_coder.hpp"

// A cache that a device replays with the policy's code, from the first token to the last: the device's input, and the
// record it returns.

namespace kvreplay {

struct DevicePolicy {
  DevicePrograms programs;
  std::vector<std::byte> policy;  // resolved, without state
  // Host arrays that the device mirrors. After the replay they hold the device's final contents.
  CacheStorage<float> memory;
  std::span<double> state;
  StepRules rules;
  RowCoder coder;  // if the memory has room for codings
  PromptNeeds needs;
  const double *column_sums, *column_max_sums, *future_sums;  // as Prompt::View; host pointers or null
  QueryStatistics known;                                      // likewise
  int32_t first_head;
  int64_t max_rows;     // after a step; negative: no guaranteed bound
  bool streams_prompt;  // the prompt arrives token by token
  bool observes;        // in every step
  bool sees_queries;    // in every step
  bool by_head;         // a step, or a row of the prompt, is processed head by head
  bool chooses;         // a step reads only some rows of the cache
  bool heads_differ;    // each head has its own ranking
  bool reweights;       // option reweight: uniform
  bool split;           // Layout::split
  bool moves;           // positions are reassigned
  bool prefix, set;     // requested side errors
  bool lists;           // every S_t is requested
};

// The record that the device returns.
struct DevicePolicyRecord {
  PolicyEnd end;
  std::vector<StepRecord> steps;  // one per token, from the first that is accounted for
  std::vector<std::byte> policy;  // final state
  struct Rows {                   // every S_t, rows in their current order
    TokenLists tokens;
    std::vector<float> num, den;  // empty: all 1
  } rows;
  std::vector<TokenLists> attended;  // [query head], for the scored rows, if `chooses` and `lists`
};

}  // namespace kvreplay
