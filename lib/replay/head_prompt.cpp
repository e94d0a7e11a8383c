#include <algorithm>
#include <numeric>

#include "replay/head_replay.hpp"

// The part of a head's replay up to the end of the prompt: what its caches ask of it, and their cuts.

namespace kvreplay {

// Statistics of prompt rows are computed once for all caches that ask for the same rows.
template <class Real>
void HeadReplay<Real>::sum_prompt() {
  PromptPass pass;
  std::vector<std::pair<Lane<Real>*, int32_t>> watchers;  // and the first row that each is shown
  bool future = false;
  for (const Replayed& r : decisions_)
    for (const auto& lane : r.lanes) {
      if (r.streams_prompt()) continue;
      PromptNeeds needs = lane->needs();
      if (r.chained) needs.rows_from = PromptNeeds::kNoRows;  // the device shows them to it
      future = future || needs.future_sums;
      pass.maxima = pass.maxima || r.cells.front()->options.gqa_aggregate == Aggregate::max;
      if (needs.column_sums_from >= 0) pass.sums_from.push_back(needs.column_sums_from);
      if (needs.rows_from < 0) continue;
      watchers.emplace_back(lane.get(), needs.rows_from);
      pass.rows_from = pass.rows_from < 0 ? needs.rows_from : std::min(pass.rows_from, needs.rows_from);
    }
  std::sort(pass.sums_from.begin(), pass.sums_from.end());
  pass.sums_from.erase(std::unique(pass.sums_from.begin(), pass.sums_from.end()), pass.sums_from.end());
  pass.on_row = [&](int32_t t, const HeadProbabilities& p) {
    for (const auto& [lane, from] : watchers)
      if (t >= from) lane->observe_prompt(t, p);
  };
  std::vector<std::vector<double>> sums = column_sums(pass);
  for (size_t i = 0; i < sums.size(); ++i) prompt_sums_[pass.sums_from[i]] = std::move(sums[i]);
  if (future) future_sums_ = sums_of_future();
}

template <class Real>
void HeadReplay<Real>::read_prompts() {
  sum_prompt();
  each_prompt([&](size_t d, Lane<Real>& lane, const PromptSums& sums) {
    if (decisions_[d].chained) order_chains(d, lane, sums);
  });
  cut_on_device();
  std::map<std::tuple<const Method*, size_t, uint32_t, int32_t>, Lane<Real>*> larger;
  each_prompt([&](size_t d, Lane<Real>& lane, const PromptSums& sums) {
    if (decisions_[d].chained || decisions_[d].cut) return;
    const Cell& cell = *decisions_[d].cells.front();
    Lane<Real>*& other = larger[{cell.method, cell.instance, cell.seed.value_or(0), lane.first_head()}];
    lane.read_prompt(sums, options_.audit ? nullptr : other);
    if (other != nullptr) other->forget_selection();
    other = &lane;
  });
  for (const auto& [key, lane] : larger)
    if (lane != nullptr) lane->forget_selection();  // null: it failed
}

// What a cache is shown row by row comes from this machine's cores.
template <class Real>
std::vector<std::vector<double>> HeadReplay<Real>::column_sums(const PromptPass& pass) {
  if (device_ == nullptr) return prompt_pass(exact_, pass);
  if (pass.rows_from >= 0) {
    PromptPass rows = pass;
    rows.sums_from.clear();
    prompt_pass(exact_, rows);
  }
  if (pass.sums_from.empty()) return {};
  return device_->prompt_sums(pass.sums_from, pass.maxima);
}
template <class Real>
std::vector<double> HeadReplay<Real>::sums_of_future() {
  return device_ == nullptr ? future_sums(exact_, scored_) : device_->future_sums(scored_rows());
}

// What budgets decide alike is found once, at the largest.
template <class Real>
std::vector<size_t> HeadReplay<Real>::by_falling_budget() const {
  std::vector<size_t> order(decisions_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto budget = [&](size_t d) { return decisions_[d].cells.front()->context().budget; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return budget(a) > budget(b); });
  return order;
}

template <class Real>
std::vector<HeadScores> HeadReplay<Real>::head_scores() {
  std::vector<HeadScores> all(decisions_.size());
  sum_prompt();
  each_prompt([&](size_t d, Lane<Real>& lane, const PromptSums& sums) { all[d] = lane.head_scores(sums); });
  return all;
}

#define KVR_FOR(Real)                                                       \
  template void HeadReplay<Real>::sum_prompt();                             \
  template void HeadReplay<Real>::read_prompts();                           \
  template std::vector<size_t> HeadReplay<Real>::by_falling_budget() const; \
  template std::vector<HeadScores> HeadReplay<Real>::head_scores();
KVR_FOR(float)
KVR_FOR(double)
#undef KVR_FOR

}  // namespace kvreplay
