#pragma once

namespace kvreplay {

// Selections that consider how much a token changes the output, on top of the prompt scores S of another method (option
// `wrapper`). S is the mean over the voting rows and the query heads.
struct Wrapper {
  // critical: CriticalKV, Feng et al. 2025, Algorithm 1. The first share of the budget goes by S, the rest by (S + eps)
  // N, with N the L1 norm of the value after the output projection.
  // caote: CAOTE, Goel et al. 2025, section 3. By the change of the output if only this token is evicted.
  enum class Kind { none, critical, caote };
  enum class Level { query, kv };  // caote: changes are computed per query head and summed, or S of the group is used
  Kind kind = Kind::none;
  double alpha = 0.5, eps = 1e-4;  // critical
  Level level = Level::query;      // caote
  bool fast = false;               // caote: the mean value replaces the output

  bool is_none() const { return kind == Kind::none; }
};

}  // namespace kvreplay
