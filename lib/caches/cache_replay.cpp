#include "caches/cache_replay.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "exact/output_norms.hpp"

namespace kvreplay {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Heads for core/step.hpp in a step without attention.
template <class Real>
struct Unattended {
  CacheReplay<Real>& replay;
  int32_t token;
  void opens(const BasicCache<Real>&) const { replay.open_step(token); }
  StepQueries<Real> queries_of_step() const { return replay.queries_at(token); }
};

}  // namespace

template <class Real>
CacheReplay<Real>::CacheReplay(CacheSetup setup, const HeadStream<Real>& stream, const CacheWatch& watch,
                               std::shared_ptr<CodedTokens<Real>> coded)
    : setup_(std::move(setup)), stream_(stream), watch_(watch), coded_(std::move(coded)), keeper_(stream.stored_bytes) {
  const CommonOptions& options = setup_.options;
  const HostHooks& host = setup_.method.method().host;
  if (host.bind_given != nullptr) host.bind_given(setup_.method.self(), setup_.given);
  if (host.bind_rng != nullptr) host.bind_rng(setup_.method.self(), setup_.rng);
  if (host.open_session != nullptr)
    session_ = host.open_session(setup_.method.self(), setup_.method.context(), setup_.first_head, watch.audit);
  rules_ = {options.phase == Phase::stream, options.order == Order::evict_then_attend, stream.window,
            options.gqa_aggregate};
  most_kept_ = setup_.method.max_rows(options);
  formatter_ = Formatter<Real>(setup_.coding, stream.stored_bytes, setup_.method.layout().split, coded_.get());
  layout_ = full_layout();
  if (setup_.method.traits().chooses) lists_.attended.resize(size_t(heads()));
  lists_.reading = reading_of(setup_.method, options);
  prompt_streams_ = setup_.prompt_streams || setup_.method.traits().streams_prompt;
  if (prompt_streams_ || host.observe_prompt != nullptr) open_memory();
  open_wrapper();
  merging_ = Merging(options.merge, setup_.rng, stream.tokens);
}

// The method's layout, extended by what the options need.
template <class Real>
Layout CacheReplay<Real>::full_layout() const {
  Layout layout = setup_.method.layout();
  layout.weights = layout.weights || setup_.options.reweight != Reweight::none;
  if (const Merge& merge = setup_.options.merge; !merge.is_none()) {
    layout.weights = layout.weights || merge.mass == Merge::Mass::keep;
    layout.own_rows += most_merged_rows();
  }
  if (!formatter_.writes()) return layout;
  layout.coded = true;
  if (coded_ != nullptr) return layout;
  const int64_t most = stream_.tokens + layout.extra_rows;
  // A token coded at once has a row before the evicted row is freed.
  const int64_t coded = most_kept_ + (setup_.options.row_format.own_row_coded ? 1 : 0);
  layout.own_rows += int32_t(most_kept_ >= 0 ? std::min(most, coded) : most);
  return layout;
}

// Most rows that merging may have written at a time: the rows that stay, and gaussian's additional ones.
template <class Real>
int32_t CacheReplay<Real>::most_merged_rows() const {
  if (setup_.options.merge.rule == Merge::Rule::gaussian) return stream_.prompt;
  const bool by_budget = setup_.method.traits().takes_budget;
  const int64_t kept = most_kept_ >= 0 ? most_kept_ + 1
                       : by_budget     ? setup_.method.context().budget.tokens
                                       : stream_.tokens;
  return int32_t(std::min<int64_t>(stream_.tokens, kept));
}

template <class Real>
FastPath CacheReplay<Real>::fast_path() const {
  const Method& m = setup_.method.method();
  const bool as_recorded =
      layout_.own_rows == 0 && !layout_.coded && !layout_.split && layout_.extra_rows == 0 && !moves_positions();
  const bool own_way = m.hooks.has(Hook::append) || setup_.method.traits().changes_logits ||
                       setup_.method.traits().chooses || wrapped_.steps();
  if (own_way || !as_recorded || watch_.audit || stream_.window > 0) return {};
  if (!rules_.streaming) return {prompt_streams_ ? FastPath::Kind::none : FastPath::Kind::fixed, {}};
  if (layout_.weights) return {};
  if (!observes()) return {FastPath::Kind::sliding, {}};
  const Aggregate how = rules_.aggregate;
  const std::optional<ScoreRule> rule = setup_.method.score_rule();
  const bool sums = how == Aggregate::sum || how == Aggregate::mean || heads() == 1;
  if (!rule || rules_.evict_first || !sums || rule->protect.sinks + rule->protect.recent >= rule->budget) return {};
  return {FastPath::Kind::scores, *rule};
}

template <class Real>
int32_t CacheReplay<Real>::most_attended(int32_t tokens) const {
  const int32_t read = setup_.method.traits().max_rows_read;
  return read != Traits::kUnbounded ? read : cache_.size() + tokens;
}

// Most rows that the cache may hold at a time, without written rows: the prompt before its cut, or the policy's bound
// afterwards plus the newest token.
template <class Real>
int32_t CacheReplay<Real>::most_rows() const {
  const BoundMethod& m = setup_.method;
  if (m.method().hooks.has(Hook::append) || most_kept_ < 0) return stream_.tokens;
  const bool streams = rules_.streaming && prompt_streams_;
  const int64_t most = std::max<int64_t>(streams ? 0 : stream_.prompt, most_kept_);
  return int32_t(std::min<int64_t>(stream_.tokens, most + 1));
}

// Called as late as possible: a cache that is cut needs the whole prompt only for a moment.
template <class Real>
void CacheReplay<Real>::open_memory() {
  if (memory_.allocated()) return;
  memory_.allocate(stream_, setup_.method.context().shape, layout_, most_rows(), watch_.audit, coded_.get());
  cache_ = BasicCache<Real>(memory_.storage());
  cache_.clear(SerialTeam{});
  const HostHooks& host = setup_.method.method().host;
  if (host.bind_state != nullptr) host.bind_state(setup_.method.self(), memory_.state());
}

template <class Real>
Prompt<Real> CacheReplay<Real>::prompt(const PromptSums& sums) const {
  return prompt_view(stream_, sums, first_head(), rules_.aggregate, memory_.storage(), needs().queries);
}

template <class Real>
void CacheReplay<Real>::observe_prompt(int32_t t, const HeadProbabilities& p) {
  const auto start = Clock::now();
  if (const auto hook = setup_.method.method().host.observe_prompt; hook != nullptr)
    hook(setup_.method.self(), t, {p.values + int64_t(first_head()) * p.rows, heads(), p.rows, rules_.aggregate});
  keeper_.ledger.select_s += seconds_since(start);
}

template <class Real>
void CacheReplay<Real>::open_wrapper() {
  const BoundMethod& m = setup_.method;
  const Wrapper& wrapper = setup_.options.wrapper;
  if (wrapper.is_none()) return;
  wrapped_.wrapper = wrapper, wrapped_.budget = m.context().budget.tokens;
  wrapped_.voters = m.method().host.voters(m.policy(), m.context());
  if (wrapper.kind == Wrapper::Kind::critical)
    wrapped_.output_norms = mean_output_norms(stream_, first_head(), heads());
  const std::optional<ScoreRule> rule = m.score_rule();
  if (!rules_.streaming || !rule) return;
  wrapped_.tokens = stream_.tokens, wrapped_.carry = rule->carry;
  const int32_t kept_apart = wrapper.level == Wrapper::Level::query ? heads() : 1;
  wrapped_.scores.assign(size_t(kept_apart) * size_t(stream_.tokens), 0);
}

template <class Real>
void CacheReplay<Real>::receive_prompt(const PromptSums& sums) {
  if (!merging_.observes()) return;
  auto view = sums_view(stream_, {.columns = sums.received}, first_head(), heads(), rules_.aggregate);
  view.size = stream_.prompt, view.shape = cache_.shape(), view.aggregate = rules_.aggregate;
  const Prompt<Real> prompt(view);
  for (int32_t i = 0; i < prompt.size(); ++i) merging_.attention[size_t(i)] = prompt.column_sum(i);
  merging_.last_row = prompt.size() - 1;
}

template <class Real>
void CacheReplay<Real>::read_prompt(const PromptSums& sums, const CacheReplay* larger) {
  const auto start = Clock::now();
  const auto bind = setup_.method.method().host.bind_larger;
  if (bind != nullptr && larger != nullptr) bind(setup_.method.self(), larger->setup_.method.policy());
  open_memory();
  memory_.reveal(0, stream_.prompt);
  receive_prompt(sums);
  reweighted_ = replay_prompt(SerialTeam{}, step_calls(), cache_, prompt(sums), rules_,
                              setup_.options.reweight != Reweight::none);
  if (bind != nullptr) bind(setup_.method.self(), nullptr);
  close_prompt();
  keeper_.ledger.select_s += seconds_since(start);
}

template <class Real>
void CacheReplay<Real>::forget_selection() {
  const HostHooks& host = setup_.method.method().host;
  if (host.bind_larger == nullptr) return;
  if (host.bind_state != nullptr) host.bind_state(setup_.method.self(), {});
  memory_.drop_state();
}

template <class Real>
HeadScores CacheReplay<Real>::head_scores(const PromptSums& sums) {
  HeadScores said;
  const HostHooks& host = setup_.method.method().host;
  if (host.protection == nullptr) return said;
  open_memory();
  memory_.reveal(0, stream_.prompt);
  kvreplay::read_prompt(SerialTeam{}, calls(), cache_, prompt(sums), rules_);
  const Protect protect = setup_.method.protection();
  for (int32_t i = 0; i < cache_.size(); ++i)
    said.scores.push_back(is_protected(protect, cache_, i, stream_.prompt) ? INFINITY : cache_.score(i));
  if (host.head_scores != nullptr) host.head_scores(setup_.method.policy(), said.extras);
  return said;
}

template <class Real>
HeadScores CacheReplay<Real>::cut_scores(const PromptSums& sums) {
  const HostHooks& host = setup_.method.method().host;
  const auto waits = [&] { return host.waits_for_heads(setup_.method.policy()); };
  open_memory();
  memory_.reveal(0, stream_.prompt);
  replay_prompt(SerialTeam{}, step_calls(), cache_, prompt(sums), rules_, false);
  if (!waits()) close_step(stream_.prompt - 1);
  for (int32_t t = stream_.prompt; t < stream_.tokens && rules_.streaming && !waits(); ++t) step_unattended(t);
  if (!waits()) return {};
  HeadScores said{0, 0, {}, {}, {cache_.tokens().begin(), cache_.tokens().end()}};
  for (int32_t i = 0; i < cache_.size(); ++i) said.scores.push_back(cache_.score(i));
  host.head_scores(setup_.method.policy(), said.extras);
  return said;
}

// Ends the reading of the prompt, after its cut.
template <class Real>
void CacheReplay<Real>::close_prompt() {
  close_step(stream_.prompt - 1);
  take_report();
  cut_evictions_ = cache_.evictions();
  if (fast_path().kind != FastPath::Kind::fixed) return;
  residency_.later = true;
  for (int32_t i = 0; i < cache_.size(); ++i)
    residency_.add(cache_.token(i), cache_.token(i) + 1, Residency::kStays, double(cache_.num(i)),
                   double(cache_.den(i)));
  memory_.shrink(size_t(cache_.size()) + size_t(stream_.tokens - stream_.prompt));
  cache_ = BasicCache<Real>(memory_.storage());
}

template <class Real>
Token<Real> CacheReplay<Real>::token_at(int32_t t) const {
  const auto& s = memory_.storage();
  return {{s.keys + int64_t(t) * s.shape.dim, size_t(s.shape.dim)},
          {s.values + int64_t(t) * s.shape.v_dim, size_t(s.shape.v_dim)},
          t,
          stream_.classes.empty() ? TokenClass::plain : TokenClass(stream_.classes[size_t(t)])};
}

template <class Real>
StepQueries<Real> CacheReplay<Real>::queries_at(int32_t t) const {
  const HeadStream<Real>& s = stream_;
  return {
      s.query(first_head(), t), int64_t(s.query_rows) * s.shape.dim, heads(), s.shape.dim, t, s.positions[size_t(t)],
      double(s.rule.scale)};
}

template <class Real>
void CacheReplay<Real>::step_unattended(int32_t t) {
  Unattended<Real> heads{*this, t};
  step(t, heads, {}, false);
}

template <class Real>
const Residency& CacheReplay<Real>::decide(int32_t begin, int32_t end) {
  residency_.begin = begin, residency_.end = end;
  residency_.sizes.clear();
  held_.assign(cache_.tokens().begin(), cache_.tokens().end());
  evicted_.clear();
  for (int32_t t = begin; t < end; ++t) {
    const int32_t before = cache_.evictions(), size = cache_.size();
    step_unattended(t);
    const int32_t gone = cache_.evictions() - before, until = rules_.evict_first ? t : t + 1;
    for (int32_t i = 0; i < gone; ++i) evicted_.push_back({cache_.evicted_since(before)[size_t(i)], until});
    residency_.sizes.push_back(size + 1 - (rules_.evict_first ? gone : 0));
  }
  residency_.later = cache_.evictions() == cut_evictions_;
  if (rules_.streaming) residency_.list(held_, evicted_, stream_.prompt);
  return residency_;
}

template <class Real>
void CacheReplay<Real>::arrive(int32_t t) {
  memory_.reveal(t, t + 1);
  cache_.push(SerialTeam{}, token_at(t));
  open_step(t);
}

template <class Real>
void CacheReplay<Real>::leave(int32_t t, int32_t evicted) {
  if (memory_.storage().score != nullptr) {  // the caller keeps the scores from here on
    memory_.drop_scores();
    cache_ = BasicCache<Real>(memory_.storage());
  }
  if (evicted >= 0) {
    const auto tokens = cache_.tokens();  // ascending, in order of arrival
    const auto at = std::lower_bound(tokens.begin(), tokens.end(), evicted) - tokens.begin();
    cache_.drop(SerialTeam{}, int32_t(at));
  }
  close_step(t);
}

// Call when C_t is complete: its newest row is exact, unless the row format codes it at once.
template <class Real>
void CacheReplay<Real>::open_step(int32_t t) {
  if (t >= stream_.prompt) formatter_.code_own(cache_);  // rows of the prompt stay exact while it is read
  if (t >= stream_.prompt) keeper_.attended(cache_.size(), formatter_.payload(cache_), !setup_.method.traits().chooses);
}

// Call when S_t is complete, after the prompt and after every step: checks it, codes due rows and updates the account.
template <class Real>
void CacheReplay<Real>::close_step(int32_t t) {
  check();
  if (cache_.written() > 0) lists_.reading.partial = true;
  formatter_.code_new(cache_);
  if (!formatter_.failure().empty()) throw ReplayError(formatter_.failure());
  if (t >= stream_.prompt - 1) keep_account(t);
  if (watch_.ages) note_ages(t, cache_.evictions());
  memory_.poison_evicted();
  const bool first_list = lists_.kept.off.size() == 1;
  if (watch_.kept && !setup_.method.traits().holds_all && t >= stream_.prompt - 1 && (rules_.streaming || first_list))
    lists_.add(cache_.tokens(), cache_.nums(), cache_.dens());
}

// evictions: number so far.
template <class Real>
void CacheReplay<Real>::note_ages(int32_t t, int32_t evictions) {
  auto& ages = keeper_.ledger.evicted_ages;
  const size_t before = ages.size(), after = size_t(evictions);
  if (after == before) return;
  if (ages.empty()) ages.reserve(after);  // for some caches the prompt's cut is the only eviction
  for (const int32_t token : cache_.evicted_since(int32_t(before)).first(after - before)) ages.push_back(t - token);
}

template <class Real>
ExtraBytes CacheReplay<Real>::extra_bytes() const {
  ExtraBytes extra;
  const Method& m = setup_.method.method();
  if (const auto hook = m.template of<Real>().extra_bytes; hook != nullptr) hook(setup_.method.policy(), extra, cache_);
  if (wrapped_.steps())  // in addition to the one score per row that is charged anyway
    extra.mark_bytes += 8 * int64_t(wrapped_.scores.size() / size_t(stream_.tokens)) * cache_.size();
  merging_.charge(cache_, rules_.streaming, extra);
  return extra;
}

template <class Real>
void CacheReplay<Real>::keep_account(int32_t t) {
  keeper_.kept({cache_.size(), cache_.shape().blocks, cache_.evictions(), formatter_.quantised(),
                formatter_.payload(cache_), formatter_.sketch_bytes(cache_), !setup_.method.traits().implied_layout,
                observes(), reweighted_, t == stream_.prompt - 1},
               extra_bytes());
}

template <class Real>
void CacheReplay<Real>::count_attended(int64_t tokens, int64_t rows, double seconds) {
  keeper_.ledger.attended_sum += tokens, keeper_.ledger.attended_rows += rows;
  keeper_.ledger.attend_s += seconds;
}

template <class Real>
void CacheReplay<Real>::count_read(std::span<const uint8_t> read) {
  keeper_.read(formatter_.read_bytes(cache_, read));
}

template <class Real>
void CacheReplay<Real>::take_report() {
  const Method& m = setup_.method.method();
  if (const auto hook = m.template of<Real>().report; hook != nullptr)
    hook(setup_.method.policy(), keeper_.ledger.extras, cache_);
  merging_.report(keeper_.ledger.extras);
  const CodedNumbers& coded = formatter_.numbers();
  if (coded.all == 0) return;
  keeper_.ledger.extras["row_clipped"] = double(coded.clipped) / double(coded.all);
  keeper_.ledger.extras["row_flushed"] = double(coded.flushed) / double(coded.all);
}

// Checks guarantees of the policy that types cannot enforce.
template <class Real>
void CacheReplay<Real>::check() const {
  if (cache_.returned_tokens() > 0) check_end({PolicyEnd::returned});
  if (cache_.failure() > 0) check_end({PolicyEnd::method, -1, cache_.failure(), cache_.failed_at()});
  if (most_kept_ >= 0 && cache_.size() > most_kept_) check_end({PolicyEnd::bound, -1, 0, cache_.size()});
}

template <class Real>
void CacheReplay<Real>::check_end(const PolicyEnd& end) const {
  switch (end.why) {
    case PolicyEnd::done:
      return;
    case PolicyEnd::denominator:
      throw ReplayError(denominator_error(end.token));
    case PolicyEnd::returned:
      throw ReplayError("the policy brought back a token that it had evicted");
    case PolicyEnd::method:
      throw ReplayError(setup_.method.failure_text(end.code, end.at));
    case PolicyEnd::bound:
      throw ReplayError("the policy holds " + std::to_string(end.at) + " tokens, more than its budget of " +
                        std::to_string(most_kept_));
    case PolicyEnd::format:
      throw ReplayError(row_format_refusal(RowCoder::Refusal(end.code), end.at));
  }
}

template class CacheReplay<float>;
template class CacheReplay<double>;

}  // namespace kvreplay
