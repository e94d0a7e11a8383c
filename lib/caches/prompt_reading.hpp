#pragma once
#include <functional>
#include <map>
#include <vector>

#include "caches/cache_replay.hpp"
#include "exact/tile.hpp"

namespace kvreplay {

// What the caches of a head ask of its prompt, computed once for all of them before they read it.
template <class Real>
class PromptReading {
 public:
  // Adds a cache that takes the prompt in one call. shows_rows: it is shown the rows that it observes; otherwise
  // somebody else shows them to it.
  void add(CacheReplay<Real>& cache, bool shows_rows = true);
  void ask_future() { future_ = true; }  // for somebody else than a cache
  // [heads, tokens] of the stream, after sum(), where somebody asked.
  const std::vector<double>& future_sums() const { return future_sums_; }
  // Column sums and the sums of the future may come from elsewhere than this machine's cores.
  using ColumnSums = std::function<std::vector<std::vector<double>>(const PromptPass& pass)>;
  using FutureSums = std::function<std::vector<double>()>;
  // Once `stop` is true no cache is shown any more rows.
  void sum(const ColumnSums& columns, const FutureSums& future, const std::function<bool()>& stop);
  // What a cache may look at, after sum().
  PromptSums sums_of(const CacheReplay<Real>& cache) const;

 private:
  const double* found(const ColumnSum& sum) const;  // null where nobody asked
  struct Watcher {
    CacheReplay<Real>* cache;
    int32_t from;  // the first row that it is shown
  };
  const KnownQueries* known_for(const CacheReplay<Real>& cache) const;
  std::vector<Watcher> watchers_;
  PromptPass pass_;
  bool future_ = false;
  std::map<ColumnSum, std::vector<double>> sums_;
  std::vector<double> future_sums_;
  const HeadStream<Real>* stream_ = nullptr;
  StatisticsNeeds asks_known_;  // of the prompt's own queries
  KnownQueries known_;
};

}  // namespace kvreplay
