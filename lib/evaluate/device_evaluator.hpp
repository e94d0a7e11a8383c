#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "caches/cache_replay.hpp"
#include "evaluate/evaluator.hpp"
#include "evaluate/head_device.hpp"
#include "measures/scored_norms.hpp"

namespace kvreplay {

// Computes the rows of caches on a device, all rows of a cache in a few large portions. Caches that decide before
// anybody attends do so on the cores, for the whole trace, and leave the device their residency; any other it runs by
// the text of its policy.
template <class Real>
class DeviceEvaluator {
 public:
  // How it computes a cache.
  enum class Way { none, rows, policy };
  // norms: of the stream's scored rows.
  DeviceEvaluator(std::unique_ptr<HeadDevice> device, const HeadStream<Real>& stream, const RowsAsked& asked,
                  HeadDevice::Asked rows, ScoredNorms<Real>& norms);

  Way accepts(const CacheReplay<Real>& cache) const;
  bool accepts_cut(const CacheReplay<Real>& cache) const;  // of its prompt, whoever computes its rows
  HeadDevice& device() { return *device_; }

  // Calls work(), which may throw ReplayError, for a cache by the number that it was added with.
  using Guard = std::function<void(size_t cache, const std::function<void()>& work)>;
  // exact: [heads of the stream, rows], as results of the cache.
  using Take = std::function<void(size_t cache, const RowResults<Real>& results, const std::vector<ExactRow>& exact)>;

  // A cache whose rows it computes. Returns its number. family: as DeviceCache.
  size_t add_rows(CacheReplay<Real>& cache, size_t family);
  size_t add_policy(CacheReplay<Real>& cache, const PromptSums& sums);
  void cut(const std::vector<std::pair<CacheReplay<Real>*, PromptSums>>& caches,
           const std::function<void(size_t, const std::function<void()>&)>& guard);
  // All rows of all caches that were added. scored: [tokens].
  void replay(const std::vector<uint8_t>& scored, const Guard& guard, const Take& take);

 private:
  void replay_rows(const Guard& guard, const Take& take);
  void replay_policies(const std::vector<uint8_t>& scored, const Guard& guard, const Take& take);
  std::vector<ExactRow> exact_rows(const DeviceRows& rows);
  RowResults<Real> results_of(const CacheReplay<Real>& cache, const DeviceRows& rows,
                              const DeviceRows::OfCache& from) const;

  std::unique_ptr<HeadDevice> device_;
  const HeadStream<Real>& stream_;
  RowsAsked asked_;
  HeadDevice::Asked rows_;
  ScoredNorms<Real>& norms_;
  struct Added {
    CacheReplay<Real>* cache;
    size_t number;
  };
  std::vector<Added> of_rows_, of_policies_;
  std::vector<DeviceCache> held_;
  std::vector<DevicePolicy> policies_;
  size_t added_ = 0;
};

}  // namespace kvreplay
