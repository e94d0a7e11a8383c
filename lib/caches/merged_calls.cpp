#include "caches/merged_calls.hpp"

#include <algorithm>

namespace kvreplay {
namespace {

// A row before a cut that may evict it. Its spans stay valid until another row is written.
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

// The rows of these tokens, in their order in the cache.
template <class Real>
std::vector<EvictedRow> evicted_of(const std::vector<HeldRow<Real>>& before, std::span<const int32_t> tokens) {
  std::vector<int32_t> gone(tokens.begin(), tokens.end());
  std::sort(gone.begin(), gone.end());
  std::vector<EvictedRow> evicted;
  for (const HeldRow<Real>& row : before)
    if (std::binary_search(gone.begin(), gone.end(), row.token))
      evicted.push_back(
          {row.token, row.num, row.den, {row.key.begin(), row.key.end()}, {row.value.begin(), row.value.end()}});
  return evicted;
}

}  // namespace

template <class Real>
void MergedCalls<Real>::evict(const SerialTeam& team, BasicCache<Real>& cache) const {
  if (merging == nullptr) return Base::evict(team, cache);
  const int32_t so_far = cache.evictions();
  const std::vector<HeldRow<Real>> before = rows_of(cache);
  Base::evict(team, cache);
  if (cache.evictions() > so_far) merge_evicted(evicted_of(before, cache.evicted_since(so_far)), *merging, cache);
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
