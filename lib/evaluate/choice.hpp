#pragma once
#include <memory>
#include <span>
#include <string>

#include "evaluate/coded_strips.hpp"
#include "evaluate/resident.hpp"
#include "evaluate/workspace.hpp"

namespace kvreplay {

// The ways to compute a cache's rows on this machine's cores, the fastest first; the first that accepts a cache
// computes it.
struct EvaluatorInfo {
  const char* name;
  const char* accepts_text;  // which caches it takes, in words
  bool (*accepts)(FastPath::Kind fast_path);
};
std::span<const EvaluatorInfo> evaluators();
const EvaluatorInfo& evaluator_for(FastPath::Kind fast_path);

// What the caches of one head share while their rows are computed.
template <class Real>
struct EvaluationShared {
  const ExactAttention<Real>& exact;
  RowsAsked asked;
  bool audit = false;
  Workspace<Real> workspace = {};
  CodedStrips<Real> coded_strips = {};
};

// For a cache, which outlives it. family: where resident caches of its family are; made where there is none, and
// replaced once it is full.
template <class Real>
std::unique_ptr<Evaluator<Real>> make_evaluator(CacheReplay<Real>& cache, EvaluationShared<Real>& shared,
                                                std::shared_ptr<ResidentFamily<Real>>& family);

}  // namespace kvreplay
