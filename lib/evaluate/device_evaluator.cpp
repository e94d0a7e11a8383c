#include "evaluate/device_evaluator.hpp"

#include <chrono>

namespace kvreplay {
namespace {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

template <class Real>
DeviceEvaluator<Real>::DeviceEvaluator(std::unique_ptr<HeadDevice> device, const HeadStream<Real>& stream,
                                       const RequestedOutputs& asked, HeadDevice::Asked rows, ScoredNorms<Real>& norms)
    : device_(std::move(device)), stream_(stream), asked_(asked), rows_(std::move(rows)), norms_(norms) {}

template <class Real>
auto DeviceEvaluator<Real>::accepts(const CacheReplay<Real>& cache) const -> Way {
  using Kind = FastPath::Kind;
  if (!asked_.needles.empty()) return Way::none;
  const Kind kind = cache.steps.fast_path().kind;
  if ((kind == Kind::fixed || kind == Kind::sliding) && !cache.streams_prompt()) return Way::rows;
  return cache.device.may_run() && device_->runs(cache.method().method().programs, cache.method().context().shape)
             ? Way::policy
             : Way::none;
}

template <class Real>
bool DeviceEvaluator<Real>::accepts_cut(const CacheReplay<Real>& cache) const {
  return !cache.streams_prompt() && cache.device.may_cut() && asked_.needles.empty() &&
         device_->runs(cache.method().method().programs, cache.method().context().shape);
}

template <class Real>
size_t DeviceEvaluator<Real>::add_rows(CacheReplay<Real>& cache, size_t family) {
  of_rows_.push_back({&cache, added_});
  DeviceCache held;
  held.first_head = cache.first_head(), held.heads = cache.heads(), held.by_head = cache.heads_differ();
  held.prefix = asked_.prefix && cache.steps.fast_path().kind == FastPath::Kind::fixed;
  held.family = family;
  held_.push_back(std::move(held));
  return added_++;
}

template <class Real>
size_t DeviceEvaluator<Real>::add_policy(CacheReplay<Real>& cache, const PromptSums& sums) {
  of_policies_.push_back({&cache, added_});
  policies_.push_back(cache.device.policy(sums, asked_.prefix, asked_.set));
  return added_++;
}

template <class Real>
void DeviceEvaluator<Real>::cut(const std::vector<std::pair<CacheReplay<Real>*, PromptSums>>& caches,
                                const std::function<void(size_t, const std::function<void()>&)>& guard) {
  if (caches.empty()) return;
  std::vector<DevicePolicy> policies;
  for (const auto& [cache, sums] : caches) policies.push_back(cache->device.policy(sums, false, false));
  const Stopwatch watch;
  const std::vector<DevicePolicyRecord> records = device_->cut(policies);
  const double seconds = watch.seconds() / double(records.size());
  for (size_t i = 0; i < caches.size(); ++i)
    guard(i, [&, cache = caches[i].first] {
      cache->device.check_end(records[i].end);
      cache->device.follow_cut(records[i], seconds);
      cache->prompt.forget_selection();
    });
}

template <class Real>
void DeviceEvaluator<Real>::replay(const std::vector<uint8_t>& scored, const Guard& guard, const Take& take) {
  if (!of_rows_.empty()) replay_rows(guard, take);
  if (!of_policies_.empty()) replay_policies(scored, guard, take);
}

template <class Real>
void DeviceEvaluator<Real>::replay_rows(const Guard& guard, const Take& take) {
  for (size_t i = 0; i < of_rows_.size(); ++i)
    guard(of_rows_[i].number, [&] {
      held_[i].held = of_rows_[i].cache->steps.decide(stream_.prompt, stream_.tokens);
      held_[i].set = asked_.set && held_[i].held.weighted();
    });
  const Stopwatch watch;
  device_->evaluate(held_, rows_, [&](const DeviceRows& rows) {
    const std::vector<ExactRow> exact = exact_rows(rows);
    for (size_t i = 0; i < of_rows_.size(); ++i)
      guard(of_rows_[i].number, [&] {
        RowResults<Real> results = results_of(*of_rows_[i].cache, rows, rows.caches[i]);
        const bool plain = !held_[i].held.weighted();
        const double spread = of_rows_[i].cache->method().error_bound().spread;
        for (size_t at = 0; at < results.of.size(); ++at) {
          results.of[at].attended = held_[i].held.attended(rows_.rows[rows.first + at % rows.count]);
          results.of[at].plain = plain, results.of[at].spread = spread;
        }
        take(of_rows_[i].number, results, exact);
      });
  });
  const double seconds = watch.seconds() / double(of_rows_.size());
  for (const Added& added : of_rows_) guard(added.number, [&] { added.cache->account.count_attended(0, 0, seconds); });
}

template <class Real>
void DeviceEvaluator<Real>::replay_policies(const std::vector<uint8_t>& scored, const Guard& guard, const Take& take) {
  const Stopwatch watch;
  const std::vector<DevicePolicyRecord> records = device_->replay(policies_, rows_, [&](const DeviceRows& rows) {
    const std::vector<ExactRow> exact = exact_rows(rows);
    for (size_t i = 0; i < rows.caches.size(); ++i) {
      const Added& added = of_policies_[rows.first_cache + i];
      guard(added.number, [&] {
        added.cache->device.check_end(rows.caches[i].end);
        RowResults<Real> results = results_of(*added.cache, rows, rows.caches[i]);
        const double spread = added.cache->method().error_bound().spread;
        for (RowResult& row : results.of)
          if (row.spread == kUnset) row.spread = spread;
        take(added.number, results, exact);
      });
    }
  });
  const double seconds = watch.seconds() / double(records.size());
  for (size_t i = 0; i < records.size(); ++i)
    guard(of_policies_[i].number, [&] {
      of_policies_[i].cache->device.check_end(records[i].end);
      of_policies_[i].cache->device.follow(records[i], scored);
      of_policies_[i].cache->account.count_attended(0, 0, seconds);
    });
}

template <class Real>
std::vector<ExactRow> DeviceEvaluator<Real>::exact_rows(const DeviceRows& rows) {
  const int32_t heads = stream_.shape.heads;
  std::vector<ExactRow> all(size_t(heads) * rows.count);
  for (size_t r = 0; r < rows.count; ++r) {
    const int32_t t = rows_.rows[rows.first + r];
    const std::span<const ValueNorm> norms = norms_.at(t);
    for (int32_t h = 0; h < heads; ++h) {
      const size_t at = size_t(h) * rows.count + r;
      const ValueNorm& norm = norms[size_t(stream_.shape.block_of(h))];
      ExactRow& row = all[at] = ExactRow(t, stream_.window);
      row.l2 = double(rows.l2[at]), row.log_normaliser = rows.log_normaliser[at];
      row.v_frobenius = norm.frobenius, row.v_operator = norm.spectral, row.v_largest = norm.largest;
    }
  }
  return all;
}

template <class Real>
RowResults<Real> DeviceEvaluator<Real>::results_of(const CacheReplay<Real>& cache, const DeviceRows& rows,
                                                   const DeviceRows::OfCache& from) const {
  RowResults<Real> results;
  results.heads = cache.heads(), results.rows = int32_t(rows.count), results.v_dim = stream_.shape.v_dim;
  results.of = from.of;
  results.out.assign(from.out.begin(), from.out.end());
  results.projections = from.projections;
  for (size_t at = 0; at < results.of.size(); ++at) {
    const double tau = results.of[at].tau;
    if (!Normaliser{tau, 0}.any()) throw ReplayError(denominator_error(rows_.rows[rows.first + at % rows.count]));
  }
  return results;
}

template class DeviceEvaluator<float>;
template class DeviceEvaluator<double>;

}  // namespace kvreplay
