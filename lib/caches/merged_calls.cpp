#include "caches/merged_calls.hpp"

#include <algorithm>

namespace kvreplay {
namespace {

// A row of a cache that may be about to go. What its spans show stands until another row is written.
template <class Real>
struct HeldRow {
  int32_t token;
  double num, den;
  std::span<const Real> key, value;
};

template <class Real>
std::vector<HeldRow<Real>> rows_of(const BasicCache<Real>& cache) {
  std::vector<HeldRow<Real>> rows;
  rows.reserve(size_t(cache.size()));
  for (int32_t i = 0; i < cache.size(); ++i)
    rows.push_back({cache.token(i), double(cache.num(i)), double(cache.den(i)), cache.key(i), cache.value(i)});
  return rows;
}

// Those that the cache does not hold any more, in the order of their tokens.
template <class Real>
std::vector<EvictedRow> evicted_of(const std::vector<HeldRow<Real>>& before, const BasicCache<Real>& cache) {
  std::vector<int32_t> kept(cache.tokens().begin(), cache.tokens().end());
  std::sort(kept.begin(), kept.end());
  std::vector<EvictedRow> evicted;
  for (const HeldRow<Real>& row : before)
    if (!std::binary_search(kept.begin(), kept.end(), row.token))
      evicted.push_back(
          {row.token, row.num, row.den, {row.key.begin(), row.key.end()}, {row.value.begin(), row.value.end()}});
  std::sort(evicted.begin(), evicted.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
  return evicted;
}

}  // namespace

template <class Real>
void MergedCalls<Real>::evict(const SerialTeam& team, BasicCache<Real>& cache) const {
  if (merging == nullptr) return Base::evict(team, cache);
  const int32_t so_far = cache.evictions();
  const std::vector<HeldRow<Real>> before = rows_of(cache);
  Base::evict(team, cache);
  if (cache.evictions() > so_far) merge_evicted(evicted_of(before, cache), *merging, cache);
}

template <class Real>
template <class P>
void MergedCalls<Real>::receive(const BasicCache<Real>& cache, P probability) const {
  const bool adds_up = merging->merge.attention == Merge::Attention::accumulated;
  for (int32_t i = 0; i < cache.size(); ++i) {
    double& received = merging->attention[size_t(cache.token(i))];
    received = (adds_up ? received : 0) + probability(i);
  }
  merging->last_row = cache.token(cache.size() - 1);
}

template <class Real>
void MergedCalls<Real>::observe(const SerialTeam& team, BasicCache<Real>& cache, std::span<const double> p) const {
  if (merging != nullptr && merging->observes()) receive(cache, [&](int32_t i) { return p[size_t(i)]; });
  if (Base::observes()) Base::observe(team, cache, p);
}

template <class Real>
void MergedCalls<Real>::observe(const SerialTeam& team, BasicCache<Real>& cache, const HeadProbabilities& p) const {
  if (merging != nullptr && merging->observes()) receive(cache, [&](int32_t i) { return p.group(i); });
  if (Base::observes()) Base::observe(team, cache, p);
}

template struct MergedCalls<float>;
template struct MergedCalls<double>;

}  // namespace kvreplay
