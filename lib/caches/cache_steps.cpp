#include "caches/cache_steps.hpp"

#include <algorithm>
#include <numeric>

namespace kvreplay {
namespace {

// Heads for core/step.hpp in a step without attention.
template <class Real>
struct Unattended {
  CacheSteps<Real>& steps;
  int32_t token;
  void opens(const BasicCache<Real>&) const { steps.open(token); }
  StepQueries<Real> queries_of_step() const { return steps.queries_at(token); }
};

}  // namespace

template <class Real>
FastPath CacheSteps<Real>::fast_path() const {
  const BoundMethod& method = state_.setup.method;
  const Layout& layout = state_.layout;
  const StepRules& rules = state_.rules;
  const bool as_recorded =
      layout.own_rows == 0 && !layout.coded && !layout.split && layout.extra_rows == 0 && !state_.moves_positions();
  const bool own_way = method.method().hooks.has(Hook::append) || method.traits().changes_logits ||
                       method.traits().chooses || state_.wrapped.steps() || state_.two_follow();
  if (own_way || !as_recorded || state_.watch.audit || state_.stream.window.any()) return {};
  if (!state_.prompt_streams && !rules.streaming) return {FastPath::Kind::fixed, {}};
  if ((state_.tied.any() && state_.observes()) || state_.stream.turns.any()) return {};
  if (layout.weights || (!rules.streaming && rules.chunked == 0)) return {};
  if (!state_.observes()) return {FastPath::Kind::sliding, {}};
  const Aggregate how = rules.aggregate;
  std::optional<ScoreRule> rule = method.score_rule();
  if (!rules.streaming) rule.reset();
  // A rule counts recent tokens back from the newest. Those that another method left may lie further back.
  if (rule && state_.handed_over && rule->protect.recent > 1) rule.reset();
  const bool sums = how == Aggregate::sum || how == Aggregate::mean || state_.heads() == 1;
  if (!rule || rules.evict_first || !sums || rule->protect.sinks + rule->protect.recent >= rule->budget) return {};
  rule->share = how == Aggregate::mean ? 1.0 / state_.heads() : 1.0;
  return {FastPath::Kind::scores, *rule};
}

template <class Real>
StepQueries<Real> CacheSteps<Real>::queries_at(int32_t t) const {
  const HeadStream<Real>& s = state_.stream;
  return {s.query(state_.setup.first_head, t),
          int64_t(s.query_rows) * s.shape.dim,
          state_.heads(),
          s.shape.dim,
          t,
          s.positions[size_t(t)],
          double(s.rule.scale),
          double(s.rule.softcap),
          state_.setup.first_head};
}

template <class Real>
void CacheSteps<Real>::step_unattended(int32_t t) {
  Unattended<Real> heads{*this, t};
  step(t, heads, {}, false);
}

template <class Real>
HeadScores CacheSteps<Real>::waiting_scores() const {
  const BasicCache<Real>& cache = state_.cache;
  HeadScores said{0, 0, {}, {}, {cache.tokens().begin(), cache.tokens().end()}};
  for (int32_t i = 0; i < cache.size(); ++i) said.scores.push_back(cache.score(i));
  state_.host().head_scores(state_.setup.method.policy(), said.extras);
  return said;
}

template <class Real>
void CacheSteps<Real>::cut_together(const GivenLists& all) {
  state_.host().bind_given(state_.setup.method.self(), all);
  state_.step_calls().evict(SerialTeam{}, state_.cache);
  account_.close_step(waits_at_);
}

template <class Real>
const Residency& CacheSteps<Real>::decide(int32_t begin, int32_t end) {
  record(begin, end, [&](int32_t t) { step_unattended(t); });
  std::sort(evicted_.begin(), evicted_.end());
  return listed(evicted_);
}

template <class Real>
const Residency& CacheSteps<Real>::decide_all() {
  record_all([&](int32_t t) { step_unattended(t); });
  std::sort(evicted_.begin(), evicted_.end());
  return listed(evicted_);
}

template <class Real>
const Residency& CacheSteps<Real>::follow(std::span<const int32_t> until) {
  std::vector<Residency::Eviction> evicted;      // by token
  std::vector<int32_t> first(until.size() + 2);  // [row] index in `leaving` of the first token that this row misses
  for (int32_t token = 0; token < int32_t(until.size()); ++token)
    if (const int32_t row = until[size_t(token)]; row != Residency::kStays)
      evicted.push_back({token, row}), ++first[size_t(row)];
  std::partial_sum(first.begin(), first.end(), first.begin());
  std::vector<int32_t> leaving(evicted.size());  // by row
  for (auto e = evicted.rbegin(); e != evicted.rend(); ++e) leaving[size_t(--first[size_t(e->until)])] = e->token;
  drop_scores();
  record_all([&](int32_t t) {
    arrive(t);
    const auto begin = first.begin() + t + 1;
    leave(t, std::span(leaving).subspan(size_t(begin[0]), size_t(begin[1] - begin[0])));
  });
  return listed(evicted);
}

// evicted: by token.
template <class Real>
const Residency& CacheSteps<Real>::listed(const std::vector<Residency::Eviction>& evicted) {
  if (fast_path().kind != FastPath::Kind::fixed) residency_.list(held_, evicted, state_.stream.prompt);
  return residency_;
}

template <class Real>
template <class Step>
void CacheSteps<Real>::record_all(Step step) {
  const int32_t prompt = state_.stream.prompt;
  for (int32_t t = 0; t < prompt && state_.prompt_streams; ++t) step(t);
  record(prompt, state_.stream.tokens, step);
}

template <class Real>
template <class Step>
void CacheSteps<Real>::record(int32_t begin, int32_t end, Step step) {
  const BasicCache<Real>& cache = state_.cache;
  const bool evict_first = state_.rules.evict_first;
  residency_.begin = begin, residency_.end = end;
  residency_.sizes.clear();
  held_.assign(cache.tokens().begin(), cache.tokens().end());
  evicted_.clear();
  for (int32_t t = begin; t < end; ++t) {
    const int32_t before = cache.evictions(), size = cache.size();
    step(t);
    const int32_t gone = cache.evictions() - before, until = evict_first ? t : t + 1;
    for (int32_t i = 0; i < gone; ++i) evicted_.push_back({cache.evicted_since(before)[size_t(i)], until});
    residency_.sizes.push_back(size + 1 - (evict_first ? gone : 0));
  }
  residency_.later = cache.evictions() == cut_evictions_;
}

template <class Real>
void CacheSteps<Real>::arrive(int32_t t) {
  state_.memory.reveal(t, t + 1);
  state_.cache.push(state_.token_at(t));
  account_.open_step_by_rule(t);
}

template <class Real>
void CacheSteps<Real>::drop_scores() {
  state_.drop_scores();
}

template <class Real>
void CacheSteps<Real>::leave(int32_t t, std::span<const int32_t> evicted) {
  BasicCache<Real>& cache = state_.cache;
  for (const int32_t token : evicted) {
    const auto tokens = cache.tokens();  // ascending, in order of arrival
    cache.drop(SerialTeam{}, int32_t(std::lower_bound(tokens.begin(), tokens.end(), token) - tokens.begin()));
  }
  account_.close_step_by_rule(t);
}

template <class Real>
std::span<const int32_t> CacheSteps<Real>::cut(int32_t t, std::span<const double> scores) {
  BasicCache<Real>& cache = state_.cache;
  const int32_t before = cache.evictions();
  for (int32_t i = 0; i < cache.size(); ++i) cache.score(i) = scores[size_t(cache.token(i))];
  state_.step_calls().evict(SerialTeam{}, cache);
  account_.close_step_by_rule(t);
  return cache.evicted_since(before).first(size_t(cache.evictions() - before));
}

template <class Real>
void CacheSteps<Real>::take_cut() {
  const BasicCache<Real>& cache = state_.cache;
  cut_evictions_ = cache.evictions();
  if (fast_path().kind != FastPath::Kind::fixed) return;
  residency_.later = true;
  for (int32_t i = 0; i < cache.size(); ++i)
    residency_.add(cache.token(i), cache.token(i) + 1, Residency::kStays, double(cache.num(i)), double(cache.den(i)));
  state_.shrink(size_t(cache.size()) + size_t(state_.stream.tokens - state_.stream.prompt));
}

template class CacheSteps<float>;
template class CacheSteps<double>;

}  // namespace kvreplay
