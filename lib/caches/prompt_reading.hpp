#pragma once
#include <functional>
#include <map>
#include <vector>

#include "caches/cache_replay.hpp"
#include "exact/tile.hpp"

namespace kvreplay {

// Sums over the prompt that the caches of a head need, computed once for all of them before they read it.
template <class Real>
class PromptReading {
 public:
  // Adds a cache that reads the prompt in one call.
  void add(CacheReplay<Real>& cache);
  void request_future() { future_ = true; }  // for other users than a cache
  // [heads, tokens] of the stream, after sum(), if requested.
  const std::vector<double>& future_sums() const { return future_sums_; }
  // The prompt is that of another text, which was read: takes over its sums and statistics.
  void go_on(PromptReading& before) {
    sums_ = std::move(before.sums_), known_ = std::move(before.known_), known_prompt_ = true;
  }
  // Functions that compute column sums and future sums, possibly on a device.
  using ColumnSums = std::function<std::vector<std::vector<double>>(const PromptPass& pass)>;
  using FutureSums = std::function<std::vector<double>()>;
  // Once `stop` returns true, caches are shown no more rows.
  void sum(const ColumnSums& columns, const FutureSums& future, const std::function<bool()>& stop);
  // The sums that a cache may read, after sum().
  PromptSums sums_of(const CacheReplay<Real>& cache) const;

 private:
  const double* found(const ColumnSum& sum) const;  // null if not requested
  struct Watcher {
    CacheReplay<Real>* cache;
    int32_t from;  // first row that the cache is shown
  };
  const KnownQueries* known_for(const CacheReplay<Real>& cache) const;
  std::vector<Watcher> watchers_;
  PromptPass pass_;
  bool future_ = false, known_prompt_ = false;
  std::map<ColumnSum, std::vector<double>> sums_;
  std::vector<double> future_sums_;
  const HeadStream<Real>* stream_ = nullptr;
  StatisticsNeeds known_needs_;  // statistics of the prompt's own queries
  KnownQueries known_;
};

}  // namespace kvreplay
