#pragma once
#include <memory>
#include <span>
#include <string>

#include "evaluate/evaluator.hpp"
#include "evaluate/resident.hpp"
#include "evaluate/stepwise.hpp"

namespace kvreplay {

// The ways to compute a cache's rows on CPU cores, the fastest first. The first one that accepts a cache computes it.
struct EvaluatorInfo {
  const char* name;
  const char* accepts_text;  // description of the caches it accepts
  bool (*accepts)(FastPath::Kind fast_path);
};
std::span<const EvaluatorInfo> evaluators();
const EvaluatorInfo& evaluator_for(FastPath::Kind fast_path);

// Data that the caches of one head share while their rows are computed.
template <class Real>
struct EvaluationShared {
  const ExactAttention<Real>& exact;
  RequestedOutputs asked;
  bool audit = false;
  Workspace<Real> workspace = {};
  CodedStrips<Real> coded_strips = {};
};

// Makes the evaluator for a cache, which must live as long as the evaluator. family: the family for resident caches;
// created if null, replaced if full.
template <class Real>
std::unique_ptr<Evaluator<Real>> make_evaluator(CacheReplay<Real>& cache, EvaluationShared<Real>& shared,
                                                std::shared_ptr<ResidentFamily<Real>>& family);

}  // namespace kvreplay
