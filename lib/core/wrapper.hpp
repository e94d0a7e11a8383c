#pragma once

namespace kvreplay {

// Selections that look at what a token brings to the output, over the prompt scores S of another method (option
// `wrapper`). S is the mean over the rows that vote and the query heads.
struct Wrapper {
  // critical: CriticalKV, Feng et al. 2025, Algorithm 1. The budget's first share goes by S, the rest by (S + eps) N,
  // with N the L1 norm that the value has behind the output projection.
  // caote: CAOTE, Goel et al. 2025, section 3. By the change of the output if the token alone goes.
  enum class Kind { none, critical, caote };
  enum class Level { query, kv };  // of caote: what it does for each query head is added up, or S is the group's
  Kind kind = Kind::none;
  double alpha = 0.5, eps = 1e-4;  // critical
  Level level = Level::query;      // caote
  bool fast = false;               // caote: the mean value stands for the output

  bool is_none() const { return kind == Kind::none; }
};

}  // namespace kvreplay
