#include "allocation/learned_budgets.hpp"

#include <algorithm>

#include "allocation/give.hpp"
#include "allocation/lu_kv.hpp"
#include "base/errors.hpp"
#include "core/head_budgets.hpp"

namespace kvreplay {

template <class Real>
void CalibratedBudgets<Real>::add(const Cell& cell) {
  for (const CalibrationPrompt& prompt : cell.variant->calibration) {
    const auto [at, is_new] = scorings_by_trace_[cell.place.trace].try_emplace(name_of(cell, prompt));
    if (!is_new) continue;
    Lesson& lesson = at->second;
    lesson.over = SharedOver::model;
    lesson.budget = cell.budget.tokens, lesson.replayed = cell.extent.prompt_tokens;
    lesson.cell = scoring_cell(cell);
    lesson.cell.place.prompt = prompt.id, lesson.cell.prompt_rank = prompt.rank, lesson.cell.extent = prompt.extent;
    // The scorer works as in a replay; if the calibration prompt is not longer than the budget, the budget is lowered.
    Budget& scored_with = lesson.cell.budget;
    scored_with.tokens = std::max(1, std::min(scored_with.tokens, prompt.extent.prompt_tokens - 1));
    scored_with.requested_tokens = scored_with.tokens;
  }
}

template <class Real>
void CalibratedBudgets<Real>::Lesson::divide() {
  for (const HeadScores& head : heads) at.push_back({cell.place.trace, "", head.layer, head.kv_head});
  if (by_curves(cell)) return divide_by_curves();
  for (const HeadScores& head : heads) said.push_back(head.extras);
}

template <class Real>
void CalibratedBudgets<Real>::Lesson::divide_by_curves() {
  const int32_t prompt = cell.extent.prompt_tokens;
  for (const int32_t tokens : lu_kv_tokens(heads, budget, prompt, replayed)) shares.push_back(double(tokens) / prompt);
}

template <class Real>
void CalibratedBudgets<Real>::learn() {
  SharingOptions all_rows = options_;  // a selection of rows limits the rows that are measured, not those of
                                       // calibration
  all_rows.queries = {};
  for (auto& [trace, lessons] : scorings_by_trace_) {
    std::map<std::string, std::vector<Scoring*>> by_prompt;
    for (auto& [name, lesson] : lessons) by_prompt[lesson.cell.place.prompt].push_back(&lesson);
    for (const auto& [prompt, scorings] : by_prompt)
      score_prompt<Real>(scorings, heads_.layers(trace, prompt), all_rows, heads_,
                         [](Scoring& of) { static_cast<Lesson&>(of).divide(); });
  }
}

template <class Real>
int32_t CalibratedBudgets<Real>::tokens(const Cell& cell, const std::vector<Place>& layers) const {
  const std::vector<Place> heads = heads_of(layers);
  std::vector<const Lesson*> lessons;
  for (const CalibrationPrompt& prompt : cell.variant->calibration) {
    const Lesson& lesson = scorings_by_trace_.at(cell.place.trace).at(name_of(cell, prompt));
    if (!lesson.lost.empty()) throw ConfigError(lesson.lost);
    if (lesson.at != heads)
      throw ConfigError("prompts " + prompt.id + " and " + cell.place.prompt +
                        " do not hold the same heads, so none can "
                        "learn from the other: write calibration: prompt:ID with one that does");
    lessons.push_back(&lesson);
  }
  return (by_curves(cell) ? by_curves_of(cell, lessons) : by_rule_of(cell, lessons))[place_of(cell, heads)];
}

template <class Real>
std::vector<int32_t> CalibratedBudgets<Real>::by_curves_of(const Cell& cell,
                                                           const std::vector<const Lesson*>& lessons) const {
  std::vector<double> mean(lessons.front()->at.size(), 0);
  for (const Lesson* lesson : lessons)
    for (size_t h = 0; h < mean.size(); ++h)
      mean[h] += lesson->shares[h] / double(lessons.size()) * cell.extent.prompt_tokens;
  return largest_remainder(mean, int64_t(cell.budget.tokens) * int64_t(mean.size()), cell.extent.prompt_tokens);
}

template <class Real>
std::vector<int32_t> CalibratedBudgets<Real>::by_rule_of(const Cell& cell,
                                                         const std::vector<const Lesson*>& lessons) const {
  std::vector<HeadScores> heads;
  for (const Place& at : lessons.front()->at) heads.push_back({at.layer, at.kv_head, {}, {}});
  for (const Lesson* lesson : lessons)
    for (size_t h = 0; h < heads.size(); ++h)
      heads[h].extras.insert(heads[h].extras.end(), lesson->said[h].begin(), lesson->said[h].end());
  const BoundMethod method(cell.variant->values, cell.context());
  return method.method().host.share(method.policy(), method.context(), heads);
}

template class CalibratedBudgets<float>;
template class CalibratedBudgets<double>;

}  // namespace kvreplay
