#include "evaluate/choice.hpp"

#include "evaluate/score_slots.hpp"
#include "evaluate/stepwise.hpp"

namespace kvreplay {
namespace {

using Kind = FastPath::Kind;

constexpr EvaluatorInfo kEvaluators[] = {
    {"resident", "decides before any query attends: cut once, or streams without reading probabilities",
     [](Kind kind) { return kind == Kind::fixed || kind == Kind::sliding; }},
    {"score slots", "streams by a score rule: adds up probabilities, evicts the lowest",
     [](Kind kind) { return kind == Kind::scores; }},
    {"stepwise", "any cache: runs the policy's code step by step", [](Kind) { return true; }},
};
enum Way { kResident, kScoreSlots, kStepwise };

}  // namespace

std::span<const EvaluatorInfo> evaluators() { return kEvaluators; }

const EvaluatorInfo& evaluator_for(FastPath::Kind fast_path) {
  for (const EvaluatorInfo& way : kEvaluators)
    if (way.accepts(fast_path)) return way;
  return kEvaluators[kStepwise];
}

template <class Real>
std::unique_ptr<Evaluator<Real>> make_evaluator(CacheReplay<Real>& cache, EvaluationShared<Real>& shared,
                                                std::shared_ptr<ResidentFamily<Real>>& family) {
  switch (Way(&evaluator_for(cache.steps.fast_path().kind) - kEvaluators)) {
    case kResident:
      if (family == nullptr || family->is_full())
        family = std::make_shared<ResidentFamily<Real>>(cache.stream(), shared.asked);
      return std::make_unique<Resident<Real>>(family, cache);
    case kScoreSlots:
      return std::make_unique<ScoreSlots<Real>>(shared.exact, cache, shared.asked);
    case kStepwise:
      break;
  }
  return std::make_unique<Stepwise<Real>>(cache, shared.asked, shared.audit, shared.workspace, shared.coded_strips);
}

template std::unique_ptr<Evaluator<float>> make_evaluator(CacheReplay<float>&, EvaluationShared<float>&,
                                                          std::shared_ptr<ResidentFamily<float>>&);
template std::unique_ptr<Evaluator<double>> make_evaluator(CacheReplay<double>&, EvaluationShared<double>&,
                                                           std::shared_ptr<ResidentFamily<double>>&);

}  // namespace kvreplay
