#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "caches/cache_replay.hpp"
#include "evaluate/evaluator.hpp"
#include "evaluate/head_device.hpp"
#include "measures/exact_rows.hpp"

namespace kvreplay {

// Computes the rows of caches on a device, all rows of a cache in a few large portions. Caches that decide before any
// query attends decide on the CPU for the whole trace and pass their residency to the device. For any other cache the
// device runs the policy's code.
template <class Real>
class DeviceEvaluator {
 public:
  // How the device computes a cache: not at all, the rows alone, or the policy too.
  enum class Way { none, rows, policy };
  // norms: norms for the stream's scored rows.
  DeviceEvaluator(std::unique_ptr<HeadDevice> device, const HeadStream<Real>& stream, const RequestedOutputs& asked,
                  HeadDevice::Asked rows, ScoredNorms<Real>& norms);

  Way accepts(const CacheReplay<Real>& cache) const;
  bool accepts_cut(
      const CacheReplay<Real>& cache) const;  // whether the device can cut its prompt, wherever its rows are computed
  HeadDevice& device() { return *device_; }

  // Calls work() for the cache with this number; work() may throw ReplayError.
  using Guard = std::function<void(size_t cache, const std::function<void()>& work)>;
  // Receives results of a cache. exact: [heads of the stream, rows], for the same rows.
  using Take = std::function<void(size_t cache, const RowResults<Real>& results, const std::vector<ExactRow>& exact)>;

  // Adds a cache whose rows the device computes. Returns its number. family: as in DeviceCache.
  size_t add_rows(CacheReplay<Real>& cache, size_t family);
  size_t add_policy(CacheReplay<Real>& cache, const PromptSums& sums);
  void cut(const std::vector<std::pair<CacheReplay<Real>*, PromptSums>>& caches,
           const std::function<void(size_t, const std::function<void()>&)>& guard);
  // Computes all rows of all added caches. scored: [tokens].
  void replay(const std::vector<uint8_t>& scored, const Guard& guard, const Take& take);

 private:
  void replay_rows(const Guard& guard, const Take& take);
  void replay_policies(const std::vector<uint8_t>& scored, const Guard& guard, const Take& take);
  std::vector<ExactRow> exact_rows(const DeviceRows& rows);
  RowResults<Real> results_of(const CacheReplay<Real>& cache, const DeviceRows& rows,
                              const DeviceRows::OfCache& from) const;

  std::unique_ptr<HeadDevice> device_;
  const HeadStream<Real>& stream_;
  RequestedOutputs asked_;
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
