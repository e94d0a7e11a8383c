#include "caches/prompt_reading.hpp"

#include <algorithm>

#include "caches/query_rows.hpp"

namespace kvreplay {
namespace {

ColumnSum wanted_sum(const PromptNeeds& needs) {
  return {needs.column_sums_of, needs.rows_ahead, needs.column_sums_from};
}

}  // namespace

template <class Real>
void PromptReading<Real>::add(CacheReplay<Real>& cache) {
  const PromptNeeds needs = cache.prompt.needs();
  future_ = future_ || needs.future_sums;
  stream_ = &cache.stream();
  if (!cache.method().calibration().is_offline()) known_needs_ = known_needs_ | needs.known.of_prompt();
  pass_.maxima = pass_.maxima || cache.options().gqa_aggregate == Aggregate::max;
  if (needs.column_sums_from >= 0) pass_.sums.push_back(wanted_sum(needs));
  const PromptNeeds later = cache.prompt.later_needs();
  if (later.column_sums_from >= 0) pass_.sums.push_back(wanted_sum(later));
  if (later.known.any()) known_needs_ = known_needs_ | later.known.of_prompt();
  if (const int32_t row = cache.prompt.merge_rows_from(); row >= 0)
    pass_.sums.push_back({TokenScore::attention, 0, row});
  const int32_t from = needs.rows_from < 0 || later.rows_from < 0 ? std::max(needs.rows_from, later.rows_from)
                                                                  : std::min(needs.rows_from, later.rows_from);
  if (from < 0) return;
  watchers_.push_back({&cache, from});
  pass_.rows_from = pass_.rows_from < 0 ? from : std::min(pass_.rows_from, from);
}

template <class Real>
void PromptReading<Real>::sum(const ColumnSums& columns, const FutureSums& future, const std::function<bool()>& stop) {
  std::sort(pass_.sums.begin(), pass_.sums.end());
  pass_.sums.erase(std::unique(pass_.sums.begin(), pass_.sums.end()), pass_.sums.end());
  pass_.on_row = [&](int32_t t, const HeadProbabilities& p) {
    for (const Watcher& watcher : watchers_)
      if (t >= watcher.from && !stop()) watcher.cache->prompt.observe(t, p);
  };
  const auto looks_ahead = [](const ColumnSum& sum) { return sum.ahead > 0; };
  if (!known_prompt_ || !watchers_.empty() || std::any_of(pass_.sums.begin(), pass_.sums.end(), looks_ahead)) {
    std::vector<std::vector<double>> sums = columns(pass_);
    for (size_t i = 0; i < sums.size(); ++i) sums_[pass_.sums[i]] = std::move(sums[i]);
  }
  if (future_) future_sums_ = future();
  if (known_needs_.any() && !known_prompt_)
    known_ = learn({query_rows(*stream_, stream_->prompt)}, query_shape(*stream_), known_needs_);
}

template <class Real>
const KnownQueries* PromptReading<Real>::known_for(const CacheReplay<Real>& cache) const {
  const StatisticsNeeds needs = cache.prompt.needs().known;
  if (!needs.any()) return cache.prompt.later_needs().known.any() ? &known_ : nullptr;
  const Calibration& by = cache.method().calibration();
  return by.is_offline() ? &cache.stream().known.at({by, needs.moments_after}) : &known_;
}

template <class Real>
const double* PromptReading<Real>::found(const ColumnSum& sum) const {
  const auto at = sums_.find(sum);
  return at == sums_.end() ? nullptr : at->second.data();
}

template <class Real>
PromptSums PromptReading<Real>::sums_of(const CacheReplay<Real>& cache) const {
  return {found(wanted_sum(cache.prompt.needs())), future_sums_.empty() ? nullptr : future_sums_.data(),
          found({TokenScore::attention, 0, cache.prompt.merge_rows_from()}), known_for(cache),
          found(wanted_sum(cache.prompt.later_needs()))};
}

template class PromptReading<float>;
template class PromptReading<double>;

}  // namespace kvreplay
