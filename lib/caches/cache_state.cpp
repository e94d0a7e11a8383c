#include "caches/cache_state.hpp"

#include <algorithm>
#include <string>

#include "exact/row_scores.hpp"

namespace kvreplay {

template <class Real>
CacheState<Real>::CacheState(CacheSetup given, const HeadStream<Real>& s, const CacheWatch& watched,
                             std::shared_ptr<CodedTokens<Real>> tokens)
    : setup(std::move(given)),
      stream(s),
      watch(watched),
      coded(std::move(tokens)),
      reading(stream, setup.method, setup.first_head, setup.options.gqa_aggregate),
      tied(setup.heads, stream, setup.options.gqa_aggregate) {
  const CommonOptions& options = setup.options;
  BoundMethod& method = setup.method;
  if (host().bind_given != nullptr) host().bind_given(method.self(), setup.given);
  method.bind_rng(setup.rng);
  if (host().open_session != nullptr)
    session = host().open_session(method.self(), method.context(), setup.first_head, watch.audit);
  rules = {options.phase == Phase::stream, options.order == Order::evict_then_attend, stream.window,
           options.gqa_aggregate, options.serving.prefill_chunk > 0 ? stream.prompt : 0};
  most_kept = method.max_rows(options);
  if (setup.later != nullptr) open_later();
  formatter = Formatter<Real>(setup.coding, stream.stored_bytes, method.layout().split, coded.get());
  layout = full_layout();
  prompt_streams = setup.prompt_streams || method.traits().streams_prompt;
  if (prompt_streams || host().observe_prompt != nullptr) open_memory();
  open_wrapper();
  merging = Merging(options.merge, setup.rng, stream.tokens);
}

template <class Real>
void CacheState<Real>::open_later() {
  later.emplace(setup.later->method_for(setup.method.context()));
  later_state.assign(size_t(later->layout().state_doubles), 0.0);
  later->bind_rng(setup.rng);
  later->bind_state(later_state);
}

// The method's layout, extended by what the options need.
template <class Real>
Layout CacheState<Real>::full_layout() const {
  Layout all = setup.method.layout();
  if (tied.any()) all.state_doubles = tied.state_doubles();
  if (later) all.scores = all.scores || later->layout().scores;
  all.weights = all.weights || setup.options.reweight != Reweight::none;
  if (const Merge& merge = setup.options.merge; !merge.is_none()) {
    all.weights = all.weights || merge.mass == Merge::Mass::keep;
    all.own_rows += most_merged_rows();
  }
  if (!setup.options.think.is_none()) all.own_rows += stream.prompt;
  if (!formatter.writes()) return all;
  all.coded = true;
  if (coded != nullptr) return all;
  const int64_t most = stream.tokens + all.extra_rows;
  // A token coded at once has a row before the evicted row is freed.
  const int64_t coded_rows = most_kept + (setup.options.row_format.own_row_coded ? 1 : 0);
  all.own_rows += int32_t(most_kept >= 0 ? std::min(most, coded_rows) : most);
  return all;
}

// Most rows that merging may have written at a time: the rows that stay, and gaussian's additional ones.
template <class Real>
int32_t CacheState<Real>::most_merged_rows() const {
  if (setup.options.merge.rule == Merge::Rule::gaussian) return stream.prompt;
  const bool by_budget = setup.method.traits().takes_budget;
  const int64_t kept = most_kept >= 0 ? most_kept + 1
                       : by_budget    ? setup.method.context().budget.tokens
                                      : stream.tokens;
  return int32_t(std::min<int64_t>(stream.tokens, kept));
}

// Most rows that the cache may hold at a time, without written rows: the prompt before its cut, or the policy's bound
// afterwards plus the newest token.
template <class Real>
int32_t CacheState<Real>::most_rows() const {
  if (setup.method.method().hooks.has(Hook::append) || most_kept < 0) return stream.tokens;
  if (later) return stream.tokens;
  const int64_t most = std::max<int64_t>(prompt_streams ? 0 : stream.prompt, most_kept);
  return int32_t(std::min<int64_t>(stream.tokens, most + 1));
}

template <class Real>
void CacheState<Real>::open_wrapper() {
  const BoundMethod& m = setup.method;
  const Wrapper& wrapper = setup.options.wrapper;
  if (wrapper.is_none()) return;
  wrapped.wrapper = wrapper, wrapped.budget = m.context().budget.tokens;
  wrapped.voters = host().voters(m.policy(), m.context());
  if (wrapper.kind == Wrapper::Kind::critical)
    wrapped.output_norms = mean_output_norms(stream, setup.first_head, heads());
  const std::optional<ScoreRule> rule = m.score_rule();
  if (!rules.streaming || !rule || rule->vote != ScoreRule::Vote::attention) return;
  wrapped.tokens = stream.tokens, wrapped.carry = rule->carry;
  const int32_t kept_apart = wrapper.level == Wrapper::Level::query ? heads() : 1;
  wrapped.scores.assign(size_t(kept_apart) * size_t(stream.tokens), 0);
}

template <class Real>
void CacheState<Real>::open_memory() {
  if (memory.allocated()) return;
  memory.allocate(stream, setup.method.context().shape, layout, most_rows(), watch.audit, coded.get(),
                  stream.shape.block_of(setup.first_head), has_listener() ? 2 : std::max(1, tied.count()));
  cache = BasicCache<Real>(memory.storage());
  cache.clear(SerialTeam{});
  if (tied.any()) tied.bind(memory.state(), setup.rng, setup.head_rngs);
  else setup.method.bind_state(memory.state());
}

template <class Real>
void CacheState<Real>::follow_later() {
  setup.method = std::move(*later);
  setup.options = setup.later->options_of(setup.options);
  later.reset(), setup.later = nullptr;
  BoundMethod& method = setup.method;
  rules.streaming = handed_over = true;
  // Until its first cut it holds what the other method left, and what waits.
  most_kept = method.max_rows(setup.options);
  if (most_kept >= 0) most_kept += cache.size() + 1;
  reading.follow(method);
}

template <class Real>
void CacheState<Real>::hand_over(const Prompt<Real>& prompt) {
  follow_later();
  step_calls().read_prompt(SerialTeam{}, prompt, cache);
}

template <class Real>
void CacheState<Real>::hand_over() {
  follow_later();
  const BasicCache<Real> followed = cache.scores_of(1);
  for (int32_t i = 0; i < cache.size() && layout.scores; ++i) cache.score(i) = followed.score(i);
}

template <class Real>
void CacheState<Real>::shrink(size_t rows) {
  memory.shrink(rows);
  cache = BasicCache<Real>(memory.storage());
}

template <class Real>
void CacheState<Real>::drop_scores() {
  if (memory.storage().score == nullptr) return;
  memory.drop_scores();
  cache = BasicCache<Real>(memory.storage());
}

template <class Real>
Token<Real> CacheState<Real>::token_at(int32_t t) const {
  const auto& s = memory.storage();
  return {{s.keys + int64_t(t) * s.shape.dim, size_t(s.shape.dim)},
          {s.values + int64_t(t) * s.shape.v_dim, size_t(s.shape.v_dim)},
          t,
          stream.classes.empty() ? TokenClass::plain : TokenClass(stream.classes[size_t(t)])};
}

template <class Real>
void CacheState<Real>::check() const {
  if (cache.returned_tokens() > 0) throw ReplayError("the policy brought back a token that it had evicted");
  if (cache.failure() > 0) throw ReplayError(setup.method.failure_text(cache.failure(), cache.failed_at()));
  if (most_kept >= 0 && cache.size() > most_kept)
    throw ReplayError("the policy holds " + std::to_string(cache.size()) + " tokens, more than its budget of " +
                      std::to_string(most_kept));
}

template struct CacheState<float>;
template struct CacheState<double>;

}  // namespace kvreplay
