#include "replay/device_caches.hpp"

#include <algorithm>

namespace kvreplay {

template <class Real>
size_t DeviceCaches<Real>::add(Lane<Real>& lane, const Shortcut& shortcut, const Options& options) {
  caches_.push_back({&lane, shortcut, options, {}});
  HeldTokens held;
  held.first_head = lane.first_head(), held.heads = lane.cache().shape().heads;
  held.by_head = lane.heads_differ();
  held.family = options.family;
  held_.push_back(std::move(held));
  return caches_.size() - 1;
}

template <class Real>
void DeviceCaches<Real>::decide(HeadDevice& device,
                                const std::function<void(size_t, const std::function<void()>&)>& guard) {
  std::vector<ScoredCache> chains;
  for (const Cache& cache : caches_)
    if (is_chain(cache)) chains.push_back(chain_of(cache));
  const std::vector<Departures> departures =
      chains.empty() ? std::vector<Departures>{} : device.departures(chains);
  size_t chain = 0;
  for (size_t id = 0; id < caches_.size(); ++id) {
    const Cache& cache = caches_[id];
    guard(id, [&] {
      if (cache.shortcut.kind == Shortcut::Kind::fixed) step_fixed(id);
      else if (cache.shortcut.kind == Shortcut::Kind::sliding) step_sliding(id);
      else step_scores(id, is_chain(cache) ? departures[chain] : nobody_leaves());
    });
    chain += is_chain(cache) ? 1 : 0;
  }
}

// A budget that the trace does not reach needs no decisions.
template <class Real>
bool DeviceCaches<Real>::is_chain(const Cache& cache) const {
  return cache.shortcut.kind == Shortcut::Kind::scores && cache.shortcut.rule.budget < stream_.tokens;
}
template <class Real>
Departures DeviceCaches<Real>::nobody_leaves() const {
  return {std::vector<int32_t>(size_t(stream_.tokens - stream_.prompt), -1), ""};
}

template <class Real>
ScoredCache DeviceCaches<Real>::chain_of(const Cache& c) const {
  const BasicCache<Real>& cache = c.lane->cache();
  const int32_t heads = cache.shape().heads;
  ScoredCache chain{
      c.shortcut.rule, c.options.averages ? 1.0 / heads : 1.0, {}, {}, c.lane->first_head(), heads};
  for (int32_t i = 0; i < cache.size(); ++i) {
    chain.tokens.push_back(cache.token(i));
    chain.scores.push_back(cache.score(i));
  }
  return chain;
}

template <class Real>
void DeviceCaches<Real>::step_fixed(size_t id) {
  Cache& c = caches_[id];
  HeldTokens& held = held_[id];
  const BasicCache<Real>& cache = c.lane->cache();
  for (int32_t i = 0; i < cache.size(); ++i) {
    held.entries.push_back({cache.token(i), stream_.tokens, float(cache.num(i)), float(cache.den(i))});
    held.weighted = held.weighted || cache.num(i) != 1 || cache.den(i) != 1;
  }
  held.later = true;
  held.prefix = c.options.prefix;
  held.set = c.options.set && held.weighted;
  for (int32_t t = stream_.prompt; t < stream_.tokens; ++t) {
    c.lane->step_alone(t);
    c.sizes.push_back(cache.size());
  }
}

template <class Real>
void DeviceCaches<Real>::step_sliding(size_t id) {
  Cache& c = caches_[id];
  const auto& cache = c.lane->cache();
  const std::vector<int32_t> start(cache.tokens().begin(), cache.tokens().end());
  std::vector<int32_t> until(size_t(stream_.tokens), stream_.tokens);
  for (int32_t t = stream_.prompt; t < stream_.tokens; ++t) {
    const int32_t before = c.lane->cache().evictions(), size = c.lane->cache().size();
    c.lane->step_alone(t);
    const auto left = c.lane->cache().left(before);
    for (const int32_t token : left) until[size_t(token)] = c.options.evicts_first ? t : t + 1;
    c.sizes.push_back(size + 1 - (c.options.evicts_first ? int32_t(left.size()) : 0));
  }
  list_held(id, start, until);
}

template <class Real>
void DeviceCaches<Real>::step_scores(size_t id, const Departures& departures) {
  Cache& c = caches_[id];
  if (!departures.failure.empty()) throw LaneError(departures.failure);
  const auto& cache = c.lane->cache();
  const std::vector<int32_t> start(cache.tokens().begin(), cache.tokens().end());
  std::vector<int32_t> until(size_t(stream_.tokens), stream_.tokens);
  for (int32_t t = stream_.prompt; t < stream_.tokens; ++t) {
    const int32_t victim = departures.victims[size_t(t - stream_.prompt)];
    c.lane->arrive(t);
    c.sizes.push_back(c.lane->cache().size());
    if (victim >= 0) until[size_t(victim)] = t + 1;
    c.lane->settle(t, victim);
  }
  list_held(id, start, until);
}

// start: what is held after the prompt, ascending. Where nobody left afterwards, the rest goes without
// saying.
template <class Real>
void DeviceCaches<Real>::list_held(size_t id, const std::vector<int32_t>& start,
                                   const std::vector<int32_t>& until) {
  std::vector<HeldTokens::Entry>& entries = held_[id].entries;
  for (const int32_t token : start) entries.push_back({token, until[size_t(token)]});
  const auto stays = [&](int32_t last) { return last == stream_.tokens; };
  held_[id].later = std::all_of(until.begin(), until.end(), stays);
  if (held_[id].later) return;
  for (int32_t t = stream_.prompt; t < stream_.tokens; ++t)
    if (until[size_t(t)] > t) entries.push_back({t, until[size_t(t)]});
}

template class DeviceCaches<float>;
template class DeviceCaches<double>;

}  // namespace kvreplay
