#include "caches/cache_account.hpp"

#include <algorithm>
#include <cmath>

#include "caches/key_channels.hpp"
#include "formats/registry.hpp"

namespace kvreplay {

template <class Real>
CacheAccount<Real>::CacheAccount(CacheState<Real>& state) : state_(state), keeper_(state.stream.stored_bytes) {
  if (state_.setup.method.traits().chooses) lists_.attended.resize(size_t(state_.heads()));
  lists_.reading = reading_of(state_.setup.method, state_.setup.options);
  const Pages& pages = state_.setup.options.serving.pages;
  if (!pages.any()) return;
  pages_ = PageTable(pages, state_.stream.tokens, pages.share_a_table());
  const HeadShape& shape = state_.setup.method.context().shape;
  row_bytes_ =
      kvreplay::row_bytes(state_.setup.options.row_format, shape.dim, shape.stored_v_dim(), state_.stream.stored_bytes);
  keeper_.ledger.page_bytes = pages.size * row_bytes_;
}

template <class Real>
void CacheAccount<Real>::follow_pages(int32_t t) {
  if (!pages_.any()) return;
  const int32_t evictions = state_.cache.evictions(), fresh = evictions - paged_evictions_;
  const auto gone =
      fresh > 0 ? state_.cache.evicted_since(paged_evictions_).first(size_t(fresh)) : std::span<const int32_t>{};
  pages_.follow(t, gone, state_.cache.tokens());
  paged_evictions_ = evictions;
  const int64_t slots = pages_.resident() * pages_.size();
  keeper_.hold_spare(std::llround(double(slots - state_.cache.size()) * row_bytes_));
}

template <class Real>
void CacheAccount<Real>::open_step(int32_t t) {
  if (t < state_.stream.prompt) {  // rows of the prompt stay exact while it is read
    prompt_peak_ = std::max(prompt_peak_, state_.cache.size());
    return;
  }
  state_.formatter.code_own(state_.cache, t);
  follow_pages(t);
  keeper_.attended(state_.cache.size(), state_.formatter.payload(state_.cache), !state_.setup.method.traits().chooses);
}

template <class Real>
void CacheAccount<Real>::close_step(int32_t t) {
  state_.check();
  if (const Think& think = state_.setup.options.think; !think.is_none() && t == state_.stream.prompt - 1)
    state_.formatter.lack(drop_channels(think, state_.stream, state_.setup.first_head, state_.cache));
  const BasicCache<Real>& cache = state_.cache;
  if (cache.written() > 0) lists_.reading.partial = true;
  state_.formatter.code_new(state_.cache, t + 1);
  if (!state_.formatter.failure().empty()) throw ReplayError(state_.formatter.failure());
  const bool after_prompt = t >= state_.stream.prompt - 1;
  follow_pages(t);
  if (after_prompt && pages_.any()) pages_.close(t);
  if (after_prompt) charge(t);
  if (state_.watch.ages) note_ages(t);
  state_.memory.poison_evicted();
  if (after_prompt) list_kept();
  if (t == state_.stream.prompt - 1 && state_.watch.after_prompt) after_prompt_ = tokens_held();
}

template <class Real>
std::vector<int32_t> CacheAccount<Real>::tokens_held() const {
  const auto held = state_.cache.tokens();
  std::vector<int32_t> tokens(held.begin(), held.end());
  std::erase_if(tokens, [](int32_t token) { return token < 0; });
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
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
  if (size == charged_open_ && !pages_.any()) keeper_.attended_again();
  else open_step(t);
  if (t >= state_.stream.prompt) charged_open_ = size;
}

template <class Real>
void CacheAccount<Real>::close_step_by_rule(int32_t t) {
  const int32_t size = state_.cache.size();
  if (size != charged_close_ || pages_.any() || t < state_.stream.prompt) {
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
ExtraBytes CacheAccount<Real>::of_method() const {
  ExtraBytes extra;
  const Method& m = state_.setup.method.method();
  if (const auto hook = m.template of<Real>().extra_bytes; hook != nullptr)
    hook(state_.setup.method.policy(), extra, state_.cache);
  return extra;
}

template <class Real>
ExtraBytes CacheAccount<Real>::extra_bytes(int32_t t) const {
  const BasicCache<Real>& cache = state_.cache;
  ExtraBytes extra = of_method();
  if (state_.wrapped.steps())  // in addition to the one score per row that is charged anyway
    extra.mark_bytes += 8 * int64_t(state_.wrapped.scores.size() / size_t(state_.stream.tokens)) * cache.size();
  if (state_.tied.any()) extra.mark_bytes *= state_.tied.count();  // each head has its own
  if (state_.keeps_queries(t)) extra.sketch_floats += state_.reading.query_floats(t + 1);
  state_.merging.charge(cache, state_.rules.streaming, extra);
  extra.aux_bytes += mask_bytes(state_.setup.options.think, cache.shape());
  return extra;
}

template <class Real>
void CacheAccount<Real>::charge(int32_t t) {
  const BasicCache<Real>& cache = state_.cache;
  Formatter<Real>& formatter = state_.formatter;
  keeper_.ledger.recoded = formatter.recoded();
  keeper_.kept(
      {cache.size(), cache.shape().blocks, cache.evictions(), formatter.quantised(), formatter.payload(cache),
       formatter.sketch_bytes(cache), !state_.setup.method.traits().implied_layout,
       state_.observes() ? std::max(1, state_.tied.count()) : 0, state_.reweighted, t == state_.stream.prompt - 1},
      extra_bytes(t));
}

template <class Real>
void CacheAccount<Real>::count_attended(int64_t tokens, int64_t rows, double seconds) {
  keeper_.ledger.attended_sum += tokens, keeper_.ledger.attended_rows += rows;
  keeper_.ledger.attend_s += seconds;
}

template <class Real>
void CacheAccount<Real>::count_read(std::span<const uint8_t> read, StepReads& to) {
  const ExtraBytes& index = to.index = of_method();
  to.tokens = int32_t(std::count(read.begin(), read.end(), kRead));
  if (index.aux_bytes_per_scan > 0) to.scanned = int32_t(std::count(read.begin(), read.end(), kScanned));
  const int64_t rows = to.tokens, scanned = rows + to.scanned;
  const double floats = index.floats_read() + double(index.sketch_floats_per_row * rows);
  const int64_t bytes =
      std::llround(floats * state_.stream.stored_bytes) + index.bytes_read() + index.aux_bytes_per_scan * scanned;
  keeper_.read_some(state_.formatter.read_bytes(state_.cache, read), bytes / state_.cache.shape().blocks);
}

template <class Real>
void CacheAccount<Real>::take_report() {
  std::map<std::string, double>& extras = keeper_.ledger.extras;
  const Method& m = state_.setup.method.method();
  if (const auto hook = m.template of<Real>().report; hook != nullptr)
    hook(state_.setup.method.policy(), extras, state_.cache);
  state_.merging.report(extras);
  keeper_.ledger.final_rows = state_.cache.size();
  if (state_.setup.method.traits().chooses) {
    const ExtraBytes index = of_method();
    const double bytes = index.floats_stored() * state_.stream.stored_bytes + double(index.aux_bytes);
    keeper_.ledger.final_index_bytes = bytes / state_.cache.shape().blocks;
  }
  keeper_.ledger.pages = pages_.ledger();
  if (state_.rules.chunked > 0) extras["peak_attended_prompt"] = prompt_peak_;
  if (state_.setup.options.serving.pages.compact) extras["moved_rows"] = double(pages_.ledger().moved_rows);
  if (state_.setup.coding != nullptr) state_.setup.coding->report(extras);
  const CodedNumbers& coded = state_.formatter.numbers();
  if (coded.all == 0) return;
  extras["row_clipped"] = double(coded.clipped) / double(coded.all);
  extras["row_flushed"] = double(coded.flushed) / double(coded.all);
}

template class CacheAccount<float>;
template class CacheAccount<double>;

}  // namespace kvreplay
