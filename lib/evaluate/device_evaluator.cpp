#include "evaluate/device_evaluator.hpp"

#include <algorithm>

#include "base/stopwatch.hpp"

namespace kvreplay {

template <class Real>
DeviceEvaluator<Real>::DeviceEvaluator(std::unique_ptr<HeadDevice> device, const HeadStream<Real>& stream,
                                       const RequestedOutputs& asked, HeadDevice::Asked rows, ScoredNorms<Real>& norms)
    : device_(std::move(device)), stream_(stream), asked_(asked), rows_(std::move(rows)), norms_(norms) {}

template <class Real>
bool DeviceEvaluator<Real>::accepts(const CacheReplay<Real>& cache) const {
  using Kind = FastPath::Kind;
  const auto [kind, rule] = cache.steps.fast_path();
  if ((kind == Kind::scores && !rule.plan.is_plain()) || cache.hands_over()) return false;
  if (!asked_.needles.empty() || kind == Kind::none) return false;
  return kind != Kind::scores || !cache.has_injected_numbers();  // a device draws its own
}

template <class Real>
size_t DeviceEvaluator<Real>::add(CacheReplay<Real>& cache, size_t family) {
  DeviceCache held;
  held.first_head = cache.first_head(), held.heads = cache.heads(), held.by_head = cache.heads_differ();
  held.prefix = asked_.prefix && cache.steps.fast_path().kind == FastPath::Kind::fixed;
  held.family = family;
  held_.push_back(std::move(held));
  caches_.push_back(&cache);
  return caches_.size() - 1;
}

// What a cache's score rule starts from.
template <class Real>
static DeviceDecision decision_of(const CacheReplay<Real>& replay) {
  const BasicCache<Real>& cache = replay.cache();
  DeviceDecision d;
  d.rule = replay.steps.fast_path().rule;
  d.first_head = replay.first_head(), d.heads = replay.heads();
  d.begin = replay.streams_prompt() ? 0 : replay.stream().prompt;
  d.tokens.assign(cache.tokens().begin(), cache.tokens().end());
  for (int32_t i = 0; i < cache.size(); ++i) d.scores.push_back(cache.score(i));
  return d;
}

template <class Real>
void DeviceEvaluator<Real>::decide(const Guard& guard) {
  const auto has_rule = [&](size_t i) { return caches_[i]->steps.fast_path().kind == FastPath::Kind::scores; };
  std::vector<DeviceDecision> ruled;
  for (size_t i = 0; i < caches_.size(); ++i)
    if (has_rule(i)) ruled.push_back(decision_of(*caches_[i]));
  const Stopwatch watch;
  std::vector<Decided> decided;
  if (!ruled.empty()) decided = device_->decide(ruled);
  const double seconds = watch.seconds() / double(std::max<size_t>(1, ruled.size()));
  size_t next = 0;
  for (size_t i = 0; i < caches_.size(); ++i)
    guard(i, [&, of_rule = has_rule(i) ? &decided[next++] : nullptr] {
      CacheReplay<Real>& cache = *caches_[i];
      if (of_rule != nullptr && of_rule->failed >= 0) throw ReplayError(denominator_error(of_rule->failed));
      held_[i].held = of_rule != nullptr ? cache.steps.follow(of_rule->until) : cache.steps.decide_all();
      held_[i].set = asked_.set && held_[i].held.weighted();
      if (of_rule != nullptr) cache.account.count_attended(0, 0, seconds);
    });
}

template <class Real>
void DeviceEvaluator<Real>::replay(const Guard& guard, const Take& take) {
  decide(guard);
  const Stopwatch watch;
  device_->evaluate(held_, rows_, [&](const DeviceRows& rows) {
    const std::vector<ExactRow> exact = exact_rows(rows);
    for (size_t i = 0; i < caches_.size(); ++i) guard(i, [&] { take(i, results_of(i, rows), exact); });
  });
  const double seconds = watch.seconds() / double(caches_.size());
  for (size_t i = 0; i < caches_.size(); ++i) guard(i, [&] { caches_[i]->account.count_attended(0, 0, seconds); });
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

// Returns how many of the tokens the row before attended to.
template <class Real>
int32_t DeviceEvaluator<Real>::list_reads(const Residency& held, int32_t t, bool lists, StepReads& to) const {
  to.reset();
  to.tokens = held.attended(t);
  bool own = false;
  held.each_run(t, stream_.prompt, [&](int32_t first, int32_t last, double, double) {
    own = own || (first <= t && t < last);
    for (int32_t i = first; i < last && lists; ++i) to.read.push_back(i);
  });
  return to.tokens - (own ? 1 : 0);
}

// Valid until the next call.
template <class Real>
const RowResults<Real>& DeviceEvaluator<Real>::results_of(size_t cache, const DeviceRows& rows) {
  const CacheReplay<Real>& replay = *caches_[cache];
  const Residency& held = held_[cache].held;
  rows.fetch(cache, fetched_);
  results_.heads = replay.heads(), results_.rows = int32_t(rows.count), results_.v_dim = stream_.shape.v_dim;
  results_.of.swap(fetched_.of);
  results_.out.assign(fetched_.out.begin(), fetched_.out.end());
  results_.projections.swap(fetched_.projections);
  const bool plain = !held.weighted();
  const double spread = replay.method().error_bound().spread;
  results_.recalls.clear(), results_.reads.resize(rows.count);
  const bool lists = asked_.reads && replay.options().gqa_level == GqaLevel::query;  // to unite the sets of a group
  for (size_t r = 0; r < rows.count; ++r) {
    const int32_t token = rows_.rows[rows.first + r], attended = held.attended(token);
    const int32_t repeated = list_reads(held, token, lists, results_.reads[r]);
    for (size_t at = r; at < results_.of.size(); at += rows.count) {
      RowResult& of = results_.of[at];
      if (!Normaliser{of.tau, 0}.any()) throw ReplayError(denominator_error(token));
      of.attended = attended, of.repeated = repeated, of.plain = plain, of.spread = spread;
    }
  }
  return results_;
}

template class DeviceEvaluator<float>;
template class DeviceEvaluator<double>;

}  // namespace kvreplay
