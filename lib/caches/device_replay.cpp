#include "caches/device_replay.hpp"

#include <algorithm>
#include <cstring>

namespace kvreplay {

template <class Real>
bool DeviceReplay<Real>::may_run() const {
  const auto injected = [](const InjectedArray& a) { return a.values != nullptr; };
  const CacheSetup& setup = state_.setup;
  const PromptNeeds needs = prompt_.needs();
  return std::is_same_v<Real, float> && setup.given.count == 0 && setup.options.wrapper.is_none() &&
         setup.options.merge.is_none() && !needs.repeat && needs.lookahead == 0 &&
         !setup.method.method().single.samples && !has_blocks(setup.options.row_format) && !state_.watch.audit &&
         std::none_of(setup.rng.injected, setup.rng.injected + Rng::kArrays, injected);
}

template <class Real>
bool DeviceReplay<Real>::may_cut() const {
  return state_.setup.method.method().hooks.has(Hook::larger) && prompt_.needs().rows_from < 0 && may_run();
}

template <class Real>
DevicePolicy DeviceReplay<Real>::policy(const PromptSums& sums, bool prefix, bool set) {
  DevicePolicy d{};
  if constexpr (std::is_same_v<Real, float>) {
    state_.open_memory();
    const CacheSetup& setup = state_.setup;
    const Method& m = setup.method.method();
    const bool streaming = state_.rules.streaming;
    d.programs = m.programs;
    d.policy.assign(setup.method.policy(), setup.method.policy() + m.bytes);
    d.memory = state_.memory.storage(), d.state = state_.memory.state();
    d.rules = state_.rules, d.needs = prompt_.needs();
    if (state_.formatter.writes()) d.coder = setup.coding->coder();
    const auto view = sums_view(state_.stream, sums, setup.first_head, state_.heads(), state_.rules.aggregate);
    d.column_sums = view.column_sums, d.column_max_sums = view.column_max_sums;
    d.future_sums = view.future_sums, d.known = view.known;
    d.first_head = setup.first_head;
    d.max_rows = state_.most_kept;
    d.streams_prompt = state_.prompt_streams, d.observes = state_.observes();
    d.sees_queries = streaming && m.hooks.has(Hook::observe_queries);
    d.by_head = m.hooks.has(Hook::choose) || m.hooks.has(Hook::observe_prompt) || m.single.observe_heads != nullptr;
    d.chooses = setup.method.traits().chooses, d.heads_differ = setup.method.heads_differ(setup.options);
    d.reweights = setup.options.reweight != Reweight::none, d.split = state_.layout.split;
    d.moves = state_.moves_positions();
    d.prefix = prefix && !streaming, d.set = set, d.lists = state_.watch.kept;
  }
  return d;
}

// Takes over the device's final state; the arrays already hold it.
template <class Real>
void DeviceReplay<Real>::take_over(const DevicePolicyRecord& record) {
  std::memcpy(state_.setup.method.self(), record.policy.data(), record.policy.size());
  if (state_.host().bind_state != nullptr) state_.host().bind_state(state_.setup.method.self(), state_.memory.state());
  state_.reweighted = record.end.reweighted;
  state_.formatter.take_over(record.end.coded);
}

template <class Real>
void DeviceReplay<Real>::follow_cut(const DevicePolicyRecord& record, double seconds) {
  take_over(record);
  prompt_.close();
  account_.add_selection_seconds(seconds);
}

template <class Real>
void DeviceReplay<Real>::follow(const DevicePolicyRecord& record, std::span<const uint8_t> scored) {
  take_over(record);
  const int32_t first = state_.stream.tokens - int32_t(record.steps.size());
  for (size_t i = 0; i < record.steps.size(); ++i) {
    const int32_t t = first + int32_t(i);
    account_.take_step(t, record.steps[i], scored[size_t(t)] != 0);
  }
  if (state_.cache.written() > 0) account_.lists().reading.partial = true;
  if (!account_.has_lists()) return;
  if (!state_.setup.method.traits().holds_all) account_.take_lists(record.rows, state_.stream.prompt - 1 - first);
  if (state_.setup.method.traits().chooses) account_.lists().attended = record.attended;
}

template class DeviceReplay<float>;
template class DeviceReplay<double>;

}  // namespace kvreplay
