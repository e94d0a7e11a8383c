#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "caches/step_record.hpp"
#include "catalog/device_programs.hpp"
#include "catalog/token_lists.hpp"
#include "core/policy.hpp"
#include "core/step.hpp"
#include "formats/row_coder.hpp"

// A cache that a device replays by the text of its policy, from the first token to the last: what the device is told,
// and what it leaves for the cache's account.

namespace kvreplay {

struct DevicePolicy {
  DevicePrograms programs;
  std::vector<std::byte> policy;  // resolved; without state
  // Arrays of the host that the device has the like of. At the end they hold what was left there.
  CacheStorage<float> memory;
  std::span<double> state;
  StepRules rules;
  RowCoder coder;  // where the memory has room for codings
  PromptNeeds needs;
  const double *column_sums, *column_max_sums, *future_sums;  // as Prompt::View; host, or null
  QueryStatistics known;                                      // likewise
  int32_t first_head;
  int64_t max_rows;     // after a step; negative: nobody promises a bound
  bool streams_prompt;  // the prompt comes token by token
  bool observes;        // every step
  bool sees_queries;    // of every step
  bool by_head;         // a step or a prompt's row is looked at head by head
  bool chooses;         // reads some rows of its cache only
  bool heads_differ;    // rankings are each head's own
  bool reweights;       // option reweight: uniform
  bool split;           // Layout::split
  bool moves;           // positions are re-assigned
  bool prefix, set;     // side errors that someone asks for
  bool lists;           // every S_t is asked for
};

// What it has left.
struct DevicePolicyRecord {
  PolicyEnd end;
  std::vector<StepRecord> steps;  // of every token from the first that is accounted for
  std::vector<std::byte> policy;  // as it was left
  struct Rows {                   // every S_t, rows as they stand
    TokenLists tokens;
    std::vector<float> num, den;  // empty: all 1
  } rows;
  std::vector<TokenLists> attended;  // of each query head in the scored rows, where `chooses` and `lists`
};

}  // namespace kvreplay
