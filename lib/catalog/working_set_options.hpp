#pragma once
#include <cstdint>
#include <string>
#include <vector>

// What a run asks about working sets: which tokens a step reads, where they would lie, and what that would cost on a
// machine (docs/measures.md, working sets).

namespace kvreplay {

// A fast tier of memory that holds some tokens of each kv head (`replay.tier`).
struct TierOptions {
  enum class Policy : uint8_t { none, lru, method };  // none: there is no tier
  Policy policy = Policy::none;
  int32_t hot = 0;  // tokens that the tier holds; 0: those that an evicting method holds
  int32_t top = 0;  // a step asks for so many tokens of the largest probability; 0: for those that it attends to
  bool any() const { return policy != Policy::none; }
};

// A machine and a model (`replay.machine`); bytes, and bytes per second.
struct MachineOptions {
  double hbm_bytes = 0, hbm_bw = 0, link_bw = 0, weights_bytes = 0;
  int64_t caches = 0;  // kv heads of the whole model; 0: those of the trace
  int64_t batch = 1;
  double reserve = 0.1;  // share of the memory that is left free
  bool overlap = true;   // transfers run beside reads
  bool any() const { return hbm_bytes > 0; }
};

struct WorkingSetOptions {
  std::vector<int32_t> recall_k;  // the first is for columns, the others for `extras`
  TierOptions tier;
  MachineOptions machine;
};

// Words of TierOptions::Policy behind `none`.
inline const std::vector<std::string> kTierPolicies = {"lru", "method"};

}  // namespace kvreplay
