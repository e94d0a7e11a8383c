#include "allocation/learned_budgets.hpp"

#include <algorithm>

#include "allocation/give.hpp"
#include "allocation/lu_kv.hpp"
#include "base/errors.hpp"
#include "core/head_budgets.hpp"

namespace kvreplay {

template <class Real>
void LearnedBudgets<Real>::add(const Cell& cell) {
  for (const CalibrationPrompt& prompt : cell.variant->calibration) {
    const auto [at, is_new] = lessons_[cell.place.trace].try_emplace(name_of(cell, prompt));
    if (!is_new) continue;
    Lesson& lesson = at->second;
    lesson.over = SharedOver::model;
    lesson.budget = cell.budget.tokens, lesson.replayed = cell.extent.prompt_tokens;
    lesson.cell = scoring_cell(cell);
    lesson.cell.place.prompt = prompt.id, lesson.cell.prompt_rank = prompt.rank, lesson.cell.extent = prompt.extent;
    // The scorer as it is replayed, where the calibration prompt is not shorter than its budget.
    Budget& scored_with = lesson.cell.budget;
    scored_with.tokens = std::max(1, std::min(scored_with.tokens, prompt.extent.prompt_tokens - 1));
    scored_with.as_asked = scored_with.tokens;
  }
}

template <class Real>
void LearnedBudgets<Real>::Lesson::divide() {
  const int32_t prompt = cell.extent.prompt_tokens;
  const std::vector<int32_t> tokens = lu_kv_tokens(heads, budget, prompt, replayed);
  for (size_t h = 0; h < heads.size(); ++h) {
    at.push_back({cell.place.trace, "", heads[h].layer, heads[h].kv_head});
    shares.push_back(double(tokens[h]) / prompt);
  }
}

template <class Real>
void LearnedBudgets<Real>::learn() {
  SharingOptions all_rows = options_;  // a selection of rows is one of those that are measured
  all_rows.queries = {};
  for (auto& [trace, lessons] : lessons_) {
    std::map<std::string, std::vector<Scoring*>> by_prompt;
    for (auto& [name, lesson] : lessons) by_prompt[lesson.cell.place.prompt].push_back(&lesson);
    for (const auto& [prompt, scorings] : by_prompt)
      score_prompt<Real>(scorings, heads_.layers(trace, prompt), all_rows, heads_,
                         [](Scoring& of) { static_cast<Lesson&>(of).divide(); });
  }
}

template <class Real>
int32_t LearnedBudgets<Real>::tokens(const Cell& cell, const std::vector<Place>& layers) const {
  const std::vector<Place> heads = heads_of(layers);
  const std::vector<CalibrationPrompt>& prompts = cell.variant->calibration;
  const std::map<Name, Lesson>& lessons = lessons_.at(cell.place.trace);
  std::vector<double> mean(heads.size(), 0);
  for (const CalibrationPrompt& prompt : prompts) {
    const Lesson& lesson = lessons.at(name_of(cell, prompt));
    if (!lesson.lost.empty()) throw ConfigError(lesson.lost);
    if (lesson.at != heads)
      throw ConfigError("prompts " + prompt.id + " and " + cell.place.prompt +
                        " do not hold the same heads, so none can "
                        "learn from the other: write calibration: prompt:ID with one that does");
    for (size_t h = 0; h < heads.size(); ++h)
      mean[h] += lesson.shares[h] / double(prompts.size()) * cell.extent.prompt_tokens;
  }
  const std::vector<int32_t> tokens =
      largest_remainder(mean, int64_t(cell.budget.tokens) * int64_t(heads.size()), cell.extent.prompt_tokens);
  return tokens[place_of(cell, heads)];
}

template class LearnedBudgets<float>;
template class LearnedBudgets<double>;

}  // namespace kvreplay
