#include "caches/prompt_reading.hpp"

#include <algorithm>

namespace kvreplay {
namespace {

ColumnSum wanted_sum(const PromptNeeds& needs) {
  return {needs.column_sums_of, needs.rows_ahead, needs.column_sums_from};
}

}  // namespace

template <class Real>
void PromptReading<Real>::add(CacheReplay<Real>& cache, bool shows_rows) {
  const PromptNeeds needs = cache.needs();
  future_ = future_ || needs.future_sums;
  pass_.maxima = pass_.maxima || cache.options().gqa_aggregate == Aggregate::max;
  if (needs.column_sums_from >= 0) pass_.sums.push_back(wanted_sum(needs));
  if (needs.rows_from < 0 || !shows_rows) return;
  watchers_.push_back({&cache, needs.rows_from});
  pass_.rows_from = pass_.rows_from < 0 ? needs.rows_from : std::min(pass_.rows_from, needs.rows_from);
}

template <class Real>
void PromptReading<Real>::sum(const ColumnSums& columns, const FutureSums& future, const std::function<bool()>& stop) {
  std::sort(pass_.sums.begin(), pass_.sums.end());
  pass_.sums.erase(std::unique(pass_.sums.begin(), pass_.sums.end()), pass_.sums.end());
  pass_.on_row = [&](int32_t t, const HeadProbabilities& p) {
    for (const Watcher& watcher : watchers_)
      if (t >= watcher.from && !stop()) watcher.cache->observe_prompt(t, p);
  };
  std::vector<std::vector<double>> sums = columns(pass_);
  for (size_t i = 0; i < sums.size(); ++i) sums_[pass_.sums[i]] = std::move(sums[i]);
  if (future_) future_sums_ = future();
}

template <class Real>
PromptSums PromptReading<Real>::sums_of(const CacheReplay<Real>& cache) const {
  const auto at = sums_.find(wanted_sum(cache.needs()));
  return {at == sums_.end() ? nullptr : at->second.data(), future_sums_.empty() ? nullptr : future_sums_.data()};
}

template class PromptReading<float>;
template class PromptReading<double>;

}  // namespace kvreplay
