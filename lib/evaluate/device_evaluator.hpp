#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "caches/cache_replay.hpp"
#include "evaluate/evaluator.hpp"
#include "evaluate/head_device.hpp"
#include "measures/exact_rows.hpp"

namespace kvreplay {

// Computes the rows of caches on a device, all rows of a cache in a few large portions, from the residency of each.
// Caches that decide before any query attends decide on the CPU, for the whole trace; score rules decide on the device.
template <class Real>
class DeviceEvaluator {
 public:
  // norms: norms for the stream's scored rows.
  DeviceEvaluator(std::unique_ptr<HeadDevice> device, const HeadStream<Real>& stream, const RequestedOutputs& asked,
                  HeadDevice::Asked rows, ScoredNorms<Real>& norms);

  bool accepts(const CacheReplay<Real>& cache) const;
  HeadDevice& device() { return *device_; }

  // Calls work() for the cache with this number; work() may throw ReplayError.
  using Guard = std::function<void(size_t cache, const std::function<void()>& work)>;
  // Receives results of a cache. exact: [heads of the stream, rows], for the same rows.
  using Take = std::function<void(size_t cache, const RowResults<Real>& results, const std::vector<ExactRow>& exact)>;

  // Adds a cache, whose prompt has been cut. Returns its number. family: as in DeviceCache.
  size_t add(CacheReplay<Real>& cache, size_t family);
  // Computes all rows of all added caches.
  void replay(const Guard& guard, const Take& take);

 private:
  void decide(const Guard& guard);
  std::vector<ExactRow> exact_rows(const DeviceRows& rows);
  int32_t list_reads(const Residency& held, int32_t t, bool lists, StepReads& to) const;
  const RowResults<Real>& results_of(size_t cache, const DeviceRows& rows);

  std::unique_ptr<HeadDevice> device_;
  const HeadStream<Real>& stream_;
  RequestedOutputs asked_;
  HeadDevice::Asked rows_;
  ScoredNorms<Real>& norms_;
  std::vector<CacheReplay<Real>*> caches_;
  std::vector<DeviceCache> held_;
  DeviceRows::OfCache fetched_;  // one cache after the other
  RowResults<Real> results_;
};

}  // namespace kvreplay
