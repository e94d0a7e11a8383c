#include "caches/cache_account.hpp"

#include <algorithm>

namespace kvreplay {

template <class Real>
CacheAccount<Real>::CacheAccount(CacheState<Real>& state) : state_(state), keeper_(state.stream.stored_bytes) {
  if (state_.setup.method.traits().chooses) lists_.attended.resize(size_t(state_.heads()));
  lists_.reading = reading_of(state_.setup.method, state_.setup.options);
}

template <class Real>
void CacheAccount<Real>::open_step(int32_t t) {
  if (t < state_.stream.prompt) return;  // rows of the prompt stay exact while it is read
  Formatter<Real>& formatter = state_.formatter;
  formatter.code_own(state_.cache);
  keeper_.attended(state_.cache.size(), formatter.payload(state_.cache), !state_.setup.method.traits().chooses);
}

template <class Real>
void CacheAccount<Real>::close_step(int32_t t) {
  state_.check();
  const BasicCache<Real>& cache = state_.cache;
  if (cache.written() > 0) lists_.reading.partial = true;
  state_.formatter.code_new(state_.cache);
  if (!state_.formatter.failure().empty()) throw ReplayError(state_.formatter.failure());
  const bool after_prompt = t >= state_.stream.prompt - 1;
  if (after_prompt) charge(t);
  if (state_.watch.ages) note_ages(t);
  state_.memory.poison_evicted();
  if (after_prompt) list_kept();
}

template <class Real>
void CacheAccount<Real>::list_kept() {
  const BasicCache<Real>& cache = state_.cache;
  const bool first_list = lists_.kept.off.size() == 1;
  if (has_lists() && !state_.setup.method.traits().holds_all && (state_.rules.streaming || first_list))
    lists_.add(cache.tokens(), cache.nums(), cache.dens());
}

template <class Real>
void CacheAccount<Real>::open_step_by_rule(int32_t t) {
  const int32_t size = state_.cache.size();
  if (t < state_.stream.prompt) return;
  if (size == charged_open_) keeper_.attended_again();
  else open_step(t);
  charged_open_ = size;
}

template <class Real>
void CacheAccount<Real>::close_step_by_rule(int32_t t) {
  const int32_t size = state_.cache.size();
  if (size != charged_close_ || t < state_.stream.prompt) {
    close_step(t);
  } else {
    state_.check();
    keeper_.kept_again(state_.cache.evictions());
    if (state_.watch.ages) note_ages(t);
    list_kept();
  }
  charged_close_ = size;
}

template <class Real>
void CacheAccount<Real>::note_ages(int32_t t) {
  auto& ages = keeper_.ledger.evicted_ages;
  const size_t before = ages.size(), after = size_t(state_.cache.evictions());
  if (after == before) return;
  if (ages.empty()) ages.reserve(after);  // for some caches the prompt's cut is the only eviction
  for (const int32_t token : state_.cache.evicted_since(int32_t(before)).first(after - before))
    ages.push_back(t - token);
}

template <class Real>
ExtraBytes CacheAccount<Real>::extra_bytes() const {
  ExtraBytes extra;
  const BasicCache<Real>& cache = state_.cache;
  const Method& m = state_.setup.method.method();
  if (const auto hook = m.template of<Real>().extra_bytes; hook != nullptr)
    hook(state_.setup.method.policy(), extra, cache);
  if (state_.wrapped.steps())  // in addition to the one score per row that is charged anyway
    extra.mark_bytes += 8 * int64_t(state_.wrapped.scores.size() / size_t(state_.stream.tokens)) * cache.size();
  state_.merging.charge(cache, state_.rules.streaming, extra);
  return extra;
}

template <class Real>
void CacheAccount<Real>::charge(int32_t t) {
  const BasicCache<Real>& cache = state_.cache;
  Formatter<Real>& formatter = state_.formatter;
  keeper_.kept({cache.size(), cache.shape().blocks, cache.evictions(), formatter.quantised(), formatter.payload(cache),
                formatter.sketch_bytes(cache), !state_.setup.method.traits().implied_layout, state_.observes(),
                state_.reweighted, t == state_.stream.prompt - 1},
               extra_bytes());
}

template <class Real>
void CacheAccount<Real>::count_attended(int64_t tokens, int64_t rows, double seconds) {
  keeper_.ledger.attended_sum += tokens, keeper_.ledger.attended_rows += rows;
  keeper_.ledger.attend_s += seconds;
}

template <class Real>
void CacheAccount<Real>::count_read(std::span<const uint8_t> read) {
  keeper_.read(state_.formatter.read_bytes(state_.cache, read));
}

template <class Real>
void CacheAccount<Real>::take_report() {
  std::map<std::string, double>& extras = keeper_.ledger.extras;
  const Method& m = state_.setup.method.method();
  if (const auto hook = m.template of<Real>().report; hook != nullptr)
    hook(state_.setup.method.policy(), extras, state_.cache);
  state_.merging.report(extras);
  const CodedNumbers& coded = state_.formatter.numbers();
  if (coded.all == 0) return;
  extras["row_clipped"] = double(coded.clipped) / double(coded.all);
  extras["row_flushed"] = double(coded.flushed) / double(coded.all);
}

template class CacheAccount<float>;
template class CacheAccount<double>;

}  // namespace kvreplay
