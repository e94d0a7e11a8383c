#include <algorithm>
#include <cstring>

#include "caches/cache_replay.hpp"

// Replays a cache on a device: what the device receives, and what it returns.

namespace kvreplay {

// Accounts for a step from the device's record.
template <class Real>
void CacheReplay<Real>::keep_account(int32_t t, const StepRecord& s, bool scored) {
  const HeadShape shape = cache_.shape();
  const bool chooses = setup_.method.traits().chooses;
  if (t >= stream_.prompt) {
    keeper_.attended(s.attended.rows, formatter_.payload_of(shape, s.attended), !chooses);
    if (chooses && scored) keeper_.read(formatter_.payload_of(shape, s.read).bytes);
  }
  if (t >= stream_.prompt - 1)
    keeper_.kept({s.kept.rows, shape.blocks, s.evictions, s.quantised, formatter_.payload_of(shape, s.kept),
                  formatter_.sketch_bytes_of(shape, s.kept), !setup_.method.traits().implied_layout, observes(),
                  reweighted_, t == stream_.prompt - 1},
                 s.extra);
}

template <class Real>
bool CacheReplay<Real>::may_run_on_device() const {
  const auto injected = [](const InjectedArray& a) { return a.values != nullptr; };
  const Rng& rng = setup_.rng;
  return std::is_same_v<Real, float> && setup_.given.count == 0 && setup_.options.wrapper.is_none() &&
         setup_.options.merge.is_none() && !needs().repeat && needs().lookahead == 0 &&
         !setup_.method.method().single.samples && !has_blocks(setup_.options.row_format) && !watch_.audit &&
         std::none_of(rng.injected, rng.injected + Rng::kArrays, injected);
}

// Worthwhile if a selection is expensive and several budgets share it.
template <class Real>
bool CacheReplay<Real>::may_cut_on_device() const {
  return setup_.method.method().hooks.has(Hook::larger) && needs().rows_from < 0 && may_run_on_device();
}

template <class Real>
DevicePolicy CacheReplay<Real>::device_policy(const PromptSums& sums, bool prefix, bool set) {
  DevicePolicy d{};
  if constexpr (std::is_same_v<Real, float>) {
    open_memory();
    const Method& m = setup_.method.method();
    d.programs = m.programs;
    d.policy.assign(setup_.method.policy(), setup_.method.policy() + m.bytes);
    d.memory = memory_.storage(), d.state = memory_.state();
    d.rules = rules_, d.needs = needs();
    if (formatter_.writes()) d.coder = setup_.coding->coder();
    const auto view = sums_view(stream_, sums, first_head(), heads(), rules_.aggregate);
    d.column_sums = view.column_sums, d.column_max_sums = view.column_max_sums;
    d.future_sums = view.future_sums, d.known = view.known;
    d.first_head = first_head();
    d.max_rows = most_kept_;
    d.streams_prompt = prompt_streams_, d.observes = observes();
    d.sees_queries = rules_.streaming && m.hooks.has(Hook::observe_queries);
    d.by_head = m.hooks.has(Hook::choose) || m.hooks.has(Hook::observe_prompt) || m.single.observe_heads != nullptr;
    d.chooses = setup_.method.traits().chooses, d.heads_differ = heads_differ();
    d.reweights = setup_.options.reweight != Reweight::none, d.split = layout_.split;
    d.moves = moves_positions();
    d.prefix = prefix && !rules_.streaming, d.set = set, d.lists = watch_.kept;
  }
  return d;
}

// Takes over the device's final state; the arrays already hold it.
template <class Real>
void CacheReplay<Real>::take_over(const DevicePolicyRecord& record) {
  std::memcpy(setup_.method.self(), record.policy.data(), record.policy.size());
  const HostHooks& host = setup_.method.method().host;
  if (host.bind_state != nullptr) host.bind_state(setup_.method.self(), memory_.state());
  reweighted_ = record.end.reweighted;
  formatter_.take_over(record.end.coded);
}

template <class Real>
void CacheReplay<Real>::follow_cut(const DevicePolicyRecord& record, double seconds) {
  take_over(record);
  close_prompt();
  keeper_.ledger.select_s += seconds;
}

template <class Real>
void CacheReplay<Real>::follow(const DevicePolicyRecord& record, std::span<const uint8_t> scored) {
  take_over(record);
  const int32_t first = stream_.tokens - int32_t(record.steps.size());
  for (size_t i = 0; i < record.steps.size(); ++i) {
    const int32_t t = first + int32_t(i);
    keep_account(t, record.steps[i], scored[size_t(t)] != 0);
    if (record.steps[i].weighs) lists_.reading.partial = true;
    if (watch_.ages) note_ages(t, record.steps[i].evictions);
  }
  if (cache_.written() > 0) lists_.reading.partial = true;
  if (!watch_.kept) return;
  if (!setup_.method.traits().holds_all) list_record(record.rows, stream_.prompt - 1 - first);
  if (setup_.method.traits().chooses) lists_.attended = record.attended;
}

// Lists every S_t from step `from` on, or only that one if the cache was cut once.
template <class Real>
void CacheReplay<Real>::list_record(const DevicePolicyRecord::Rows& rows, int32_t from) {
  const size_t first = size_t(std::max(0, from)), steps = rows.tokens.off.size() - 1;
  for (size_t i = first; i < (rules_.streaming ? steps : std::min(steps, first + 1)); ++i) {
    const size_t begin = size_t(rows.tokens.off[i]), count = size_t(rows.tokens.off[i + 1]) - begin;
    const auto part = [&](const auto& of) { return of.empty() ? std::span(of) : std::span(of).subspan(begin, count); };
    lists_.add(part(rows.tokens.flat), part(rows.num), part(rows.den));
  }
}

template bool CacheReplay<float>::may_run_on_device() const;
template bool CacheReplay<float>::may_cut_on_device() const;
template DevicePolicy CacheReplay<float>::device_policy(const PromptSums&, bool, bool);
template void CacheReplay<float>::follow_cut(const DevicePolicyRecord&, double);
template void CacheReplay<float>::follow(const DevicePolicyRecord&, std::span<const uint8_t>);
template bool CacheReplay<double>::may_run_on_device() const;
template bool CacheReplay<double>::may_cut_on_device() const;
template DevicePolicy CacheReplay<double>::device_policy(const PromptSums&, bool, bool);
template void CacheReplay<double>::follow_cut(const DevicePolicyRecord&, double);
template void CacheReplay<double>::follow(const DevicePolicyRecord&, std::span<const uint8_t>);

}  // namespace kvreplay
