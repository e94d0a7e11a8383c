#include "allocation/learned_budgets.hpp"

#include <algorithm>

#include "allocation/allocator_files.hpp"
#include "allocation/lu_kv.hpp"
#include "allocation/shared_budgets.hpp"
#include "base/errors.hpp"
#include "core/share.hpp"

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

namespace {

std::string name_of_rule(const Cell& cell) {
  return std::string(cell.method().info.name) + ": allocator " + word(cell.options().allocator);
}

}  // namespace

void share_with_streaming(const Cell& like, Protect ends, const std::vector<bool>& streams,
                          const std::vector<Receiver>& to) {
  const int32_t each = ends.sinks + ends.recent;
  const std::vector<int32_t> tokens = duo_tokens(streams, like.budget.tokens, each, like.extent.prompt_tokens);
  if (tokens.empty())
    throw ConfigError(name_of_rule(like) + ": streaming heads hold sinks " + std::to_string(ends.sinks) + " + recent " +
                      std::to_string(ends.recent) + " tokens each, which leaves the others nothing of a budget of " +
                      std::to_string(like.budget.tokens) + " a head: make sinks, recent or stream_frac smaller");
  for (const Receiver& one : to) {
    one.cell->allocator_says = {{"streams", streams[one.head] ? 1.0 : 0.0},
                                {"allocated_excess", excess_tokens(tokens, like)}};
    if (streams[one.head]) stream_ends(*one.cell, ends);
    else give(*one.cell, tokens[one.head]);
  }
}

namespace {

void give_duo(const Cell& like, const BoundMethod& looking, const std::vector<HeadScores>& heads,
              const std::vector<Receiver>& to) {
  std::vector<bool> streams;
  for (const int32_t held : looking.method().host.share(looking.policy(), looking.context(), heads))
    streams.push_back(held < looking.context().tokens);
  share_with_streaming(like, looking.protection(), streams, to);
}

// The window is the one that the scorer protects.
std::vector<int32_t> headkv(const Cell& like, const std::vector<double>& importance) {
  if (std::none_of(importance.begin(), importance.end(), [](double i) { return i > 0; }))
    throw ConfigError(name_of_rule(like) +
                      ": no head has any importance. Importance mass looks beyond sinks + recent "
                      "tokens of the prompt: make them smaller than the prompt");
  const Protect protect = BoundMethod(like.variant->values, like.context()).protection();
  const HeadKv& rule = like.options().headkv;
  return headkv_tokens(importance, like.budget.tokens, std::min(protect.sinks + protect.recent, like.budget.tokens),
                       rule.beta, rule.temp);
}

void give_headkv(Cell& cell, const std::vector<int32_t>& tokens, size_t head) {
  cell.allocator_says = {{"allocated_excess", excess_tokens(tokens, cell)}};
  give(cell, std::min(tokens[head], cell.extent.prompt_tokens));
}

}  // namespace

void share_by_reach(const Cell& like, const BoundMethod& looking, const std::vector<HeadScores>& heads,
                    const std::vector<Receiver>& to) {
  if (like.options().allocator == Allocator::duo) return give_duo(like, looking, heads, to);
  std::vector<double> importance;
  for (const HeadScores& head : heads) importance.push_back(head.extras.at(0));
  const std::vector<int32_t> tokens = headkv(like, importance);
  for (const Receiver& one : to) give_headkv(*one.cell, tokens, one.head);
}

void share_by_importance(Cell& cell, const std::vector<Place>& layers) {
  const std::vector<Place> heads = heads_of(layers);
  const std::vector<double> importance =
      importance_in_file(cell.options().allocator_file, heads, cell.variant->shape.heads);
  give_headkv(cell, headkv(cell, importance), place_of(cell, heads));
}

}  // namespace kvreplay
