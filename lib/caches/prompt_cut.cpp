#include "caches/prompt_cut.hpp"

#include <cmath>

#include "base/stopwatch.hpp"

namespace kvreplay {
namespace {

// Adds the seconds of its life to the account.
template <class Real>
class SelectionClock {
 public:
  explicit SelectionClock(CacheAccount<Real>& account) : account_(account) {}
  ~SelectionClock() { account_.add_selection_seconds(watch_.seconds()); }
  SelectionClock(const SelectionClock&) = delete;
  SelectionClock& operator=(const SelectionClock&) = delete;

 private:
  CacheAccount<Real>& account_;
  Stopwatch watch_;
};

}  // namespace

template <class Real>
Prompt<Real> PromptCut<Real>::view(const PromptSums& sums) const {
  return prompt_view(state_.stream, sums, state_.setup.first_head, state_.rules.aggregate, state_.memory.storage(),
                     needs().queries);
}

template <class Real>
void PromptCut<Real>::observe(int32_t t, const HeadProbabilities& p) {
  const SelectionClock<Real> clock(account_);
  const double* own = p.values + int64_t(state_.setup.first_head) * p.rows;
  const HeadProbabilities seen{own, state_.heads(), p.rows, state_.rules.aggregate};
  const auto shows = [&](const BoundMethod& method) {
    const int32_t from = method.needs().rows_from;
    return method.method().host.observe_prompt != nullptr && from >= 0 && t >= from;
  };
  if (state_.later && shows(*state_.later)) state_.later->method().host.observe_prompt(state_.later->self(), t, seen);
  if (!shows(state_.setup.method)) return;
  const auto hook = state_.host().observe_prompt;
  if (!state_.tied.any()) return hook(state_.setup.method.self(), t, seen);
  state_.tied.each([&](const TableCalls<Real>& head, int32_t b) { hook(head.self, t, state_.tied.of_head(seen, b)); });
}

// Passes the attention that the prompt's tokens got to the merge rule.
template <class Real>
void PromptCut<Real>::receive(const PromptSums& sums) {
  Merging& merging = state_.merging;
  if (!merging.observes()) return;
  auto view = sums_view(state_.stream, {.columns = sums.received}, state_.setup.first_head, state_.heads(),
                        state_.rules.aggregate);
  view.size = state_.stream.prompt, view.shape = state_.cache.shape(), view.aggregate = state_.rules.aggregate;
  const Prompt<Real> prompt(view);
  for (int32_t i = 0; i < prompt.size(); ++i) merging.attention[size_t(i)] = prompt.column_sum(i);
  merging.last_row = prompt.size() - 1;
}

template <class Real>
void PromptCut<Real>::read(const PromptSums& sums, const PromptCut* larger) {
  const SelectionClock<Real> clock(account_);
  BoundMethod& method = state_.setup.method;
  const auto bind = state_.host().bind_larger;
  if (bind != nullptr && larger != nullptr) bind(method.self(), larger->state_.setup.method.policy());
  state_.open_memory();
  state_.memory.reveal(0, state_.stream.prompt);
  receive(sums);
  state_.reweighted = replay_prompt(SerialTeam{}, state_.step_calls(), state_.cache, view(sums), state_.rules,
                                    state_.setup.options.reweight != Reweight::none);
  if (bind != nullptr) bind(method.self(), nullptr);
  if (state_.later) {
    state_.stream.hold_queries(0, state_.stream.prompt - 1);
    const bool queries = later_needs().queries;
    state_.hand_over(prompt_view(state_.stream, sums.later(), state_.setup.first_head, state_.rules.aggregate,
                                 state_.memory.storage(), queries));
  }
  close();
}

template <class Real>
void PromptCut<Real>::forget_selection() {
  const HostHooks& host = state_.host();
  if (host.bind_larger == nullptr || state_.setup.method.reads_at_cuts()) return;  // later cuts select too
  state_.setup.method.bind_state({});
  state_.memory.drop_state();
}

template <class Real>
HeadScores PromptCut<Real>::head_scores(const PromptSums& sums) {
  HeadScores said;
  const HostHooks& host = state_.host();
  const BasicCache<Real>& cache = state_.cache;
  if (host.protection == nullptr) return said;
  state_.open_memory();
  state_.memory.reveal(0, state_.stream.prompt);
  kvreplay::read_prompt(SerialTeam{}, state_.calls(), state_.cache, view(sums), state_.rules);
  const Protect protect = state_.setup.method.protection();
  for (int32_t i = 0; i < cache.size(); ++i)
    said.scores.push_back(is_protected(protect, cache, i, state_.stream.prompt) ? INFINITY : cache.score(i));
  if (host.head_scores != nullptr) host.head_scores(state_.setup.method.policy(), said.extras);
  return said;
}

template <class Real>
HeadScores PromptCut<Real>::cut_scores(const PromptSums& sums) {
  const HeadStream<Real>& stream = state_.stream;
  state_.open_memory();
  state_.memory.reveal(0, stream.prompt);
  replay_prompt(SerialTeam{}, state_.step_calls(), state_.cache, view(sums), state_.rules, false);
  const auto waits = [&] { return steps_.waits_for_heads(); };
  if (!waits()) account_.close_step(stream.prompt - 1);
  for (int32_t t = stream.prompt; t < stream.arrived() && state_.rules.streaming && !waits(); ++t)
    steps_.step_unattended(t);
  return waits() ? steps_.waiting_scores() : HeadScores{};
}

template <class Real>
void PromptCut<Real>::close() {
  account_.close_step(state_.stream.prompt - 1);
  account_.take_report();
  steps_.take_cut();
}

template class PromptCut<float>;
template class PromptCut<double>;

}  // namespace kvreplay
