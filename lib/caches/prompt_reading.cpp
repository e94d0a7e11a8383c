#include "caches/prompt_reading.hpp"

#include <algorithm>

namespace kvreplay {
namespace {

template <class Real>
QueryRows prompt_rows(const HeadStream<Real>& s) {
  const auto show_head = [&s](int32_t head, const QueryRows::Show& show) {
    const size_t dim = size_t(s.shape.dim);
    const Real* const keys = s.block_keys(s.shape.block_of(head));
    std::vector<double> query(dim), key(dim);
    for (int32_t t = 0; t < s.prompt; ++t) {
      std::copy_n(s.query(head, t), dim, query.begin());
      std::copy_n(keys + int64_t(t) * s.shape.dim, dim, key.begin());
      show(query, key, s.positions[size_t(t)]);
    }
  };
  return {s.prompt, show_head};
}
template <class Real>
QueryShape query_shape(const HeadStream<Real>& s) {
  return {
      s.shape.heads, s.shape.dim, {s.inv_freq.data(), int32_t(s.inv_freq.size()), s.interleaved, s.attention_factor}};
}
ColumnSum wanted_sum(const PromptNeeds& needs) {
  return {needs.column_sums_of, needs.rows_ahead, needs.column_sums_from};
}

}  // namespace

template <class Real>
void PromptReading<Real>::add(CacheReplay<Real>& cache) {
  const PromptNeeds needs = cache.prompt.needs();
  future_ = future_ || needs.future_sums;
  stream_ = &cache.stream();
  if (!cache.method().calibration().is_offline()) known_needs_ = known_needs_ | needs.known;
  pass_.maxima = pass_.maxima || cache.options().gqa_aggregate == Aggregate::max;
  if (needs.column_sums_from >= 0) pass_.sums.push_back(wanted_sum(needs));
  if (const int32_t row = cache.prompt.merge_rows_from(); row >= 0)
    pass_.sums.push_back({TokenScore::attention, 0, row});
  if (needs.rows_from < 0) return;
  watchers_.push_back({&cache, needs.rows_from});
  pass_.rows_from = pass_.rows_from < 0 ? needs.rows_from : std::min(pass_.rows_from, needs.rows_from);
}

template <class Real>
void PromptReading<Real>::sum(const ColumnSums& columns, const FutureSums& future, const std::function<bool()>& stop) {
  std::sort(pass_.sums.begin(), pass_.sums.end());
  pass_.sums.erase(std::unique(pass_.sums.begin(), pass_.sums.end()), pass_.sums.end());
  pass_.on_row = [&](int32_t t, const HeadProbabilities& p) {
    for (const Watcher& watcher : watchers_)
      if (t >= watcher.from && !stop()) watcher.cache->prompt.observe(t, p);
  };
  std::vector<std::vector<double>> sums = columns(pass_);
  for (size_t i = 0; i < sums.size(); ++i) sums_[pass_.sums[i]] = std::move(sums[i]);
  if (future_) future_sums_ = future();
  if (known_needs_.any()) known_ = learn({prompt_rows(*stream_)}, query_shape(*stream_), known_needs_);
}

template <class Real>
const KnownQueries* PromptReading<Real>::known_for(const CacheReplay<Real>& cache) const {
  if (!cache.prompt.needs().known.any()) return nullptr;
  const Calibration& by = cache.method().calibration();
  return by.is_offline() ? &cache.stream().known.at(by) : &known_;
}

template <class Real>
const double* PromptReading<Real>::found(const ColumnSum& sum) const {
  const auto at = sums_.find(sum);
  return at == sums_.end() ? nullptr : at->second.data();
}

template <class Real>
PromptSums PromptReading<Real>::sums_of(const CacheReplay<Real>& cache) const {
  return {found(wanted_sum(cache.prompt.needs())), future_sums_.empty() ? nullptr : future_sums_.data(),
          found({TokenScore::attention, 0, cache.prompt.merge_rows_from()}), known_for(cache)};
}

template class PromptReading<float>;
template class PromptReading<double>;

}  // namespace kvreplay
