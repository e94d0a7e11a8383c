#include <algorithm>
#include <chrono>
#include <cmath>

#include "replay/head_replay.hpp"

// The part of a head's replay that a device does.

namespace kvreplay {
namespace {

RowMeasure measure_of(const DeviceRow& row) {
  RowMeasure m;
  const bool normal = std::isnormal(row.tau);
  m.tau = normal ? double(row.tau) : std::exp(double(row.log_tau));
  m.log_tau = double(row.log_tau);
  m.kept_mass = double(row.kept_mass);
  return m;
}

}  // namespace

template <class Real>
std::vector<int32_t> HeadReplay<Real>::scored_rows() const {
  std::vector<int32_t> rows;
  for (int32_t t = 0; t < stream_.tokens; ++t)
    if (scored_[size_t(t)] != 0) rows.push_back(t);
  return rows;
}

// Caches of tokens as they stand, from the end of the prompt on.
template <class Real>
bool HeadReplay<Real>::device_takes(const Replayed& r) const {
  if (device_ == nullptr || r.streams_prompt() || !watch_.needles.empty()) return false;
  return std::all_of(r.lanes.begin(), r.lanes.end(), [&](const auto& lane) {
    const Shortcut shortcut = lane->shortcut();
    if (shortcut.kind == Shortcut::Kind::scores)
      return device_->fits(shortcut.rule, lane->cache().shape().heads);
    return shortcut.kind != Shortcut::Kind::none;
  });
}

template <class Real>
void HeadReplay<Real>::give_to_device(size_t decision) {
  const Replayed& r = decisions_[decision];
  const Axes& axes = r.cells.front()->axes;
  for (const auto& lane : r.lanes) {
    device_caches_.add(*lane, lane->shortcut(),
                       {axes.order == Order::evict_then_attend, axes.gqa_aggregate == Aggregate::mean,
                        watch_.prefix_error && axes.phase == Phase::oneshot, watch_.set_error,
                        family_of(r, *lane, lane->shortcut().kind)});
    device_decisions_.push_back(decision);
  }
}

template <class Real>
void HeadReplay<Real>::replay_on_device() {
  device_caches_.decide(
      *device_, [&](size_t id, const auto& step) { guarded(decisions_[device_decisions_[id]], step); });
  const auto start = std::chrono::steady_clock::now();
  const HeadDevice::Asked asked{scored_rows(), options_.wanted.recalls, options_.save.outputs};
  device_->evaluate(device_caches_.held(), asked, [&](const DeviceRows& rows) { take(rows, asked.rows); });
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  for (size_t id = 0; id < device_decisions_.size(); ++id) {
    Replayed& r = decisions_[device_decisions_[id]];
    int64_t tokens = 0;
    for (const int32_t t : asked.rows) tokens += r.alive() ? device_caches_.attended(id, t) : 0;
    const HeldTokens& held = device_caches_.held()[id];
    r.lanes[device_lane(id)]->count_attended(tokens * held.heads, int64_t(asked.rows.size()) * held.heads,
                                             passed.count() / double(device_decisions_.size()));
  }
}

// Caches of a decision stand one after the other.
template <class Real>
size_t HeadReplay<Real>::device_lane(size_t id) const {
  size_t lane = 0;
  while (lane < id && device_decisions_[id - lane - 1] == device_decisions_[id]) ++lane;
  return lane;
}

template <class Real>
void HeadReplay<Real>::take(const DeviceRows& rows, const std::vector<int32_t>& tokens) {
  for (size_t i = 0; i < rows.count; ++i) norms_.at(tokens[rows.first + i]);
  for (size_t id = 0; id < rows.caches.size(); ++id) {
    Replayed& r = decisions_[device_decisions_[id]];
    guarded(r, [&] {
      for (size_t i = 0; i < rows.count; ++i) {
        const int32_t t = tokens[rows.first + i];
        take_row(r, {rows, id, i, t, norms_.at(t)});
      }
    });
  }
}

template <class Real>
void HeadReplay<Real>::take_row(Replayed& r, const DeviceCell& at) {
  const HeldTokens& held = device_caches_.held()[at.id];
  const bool layer = stream_.shape.blocks > 1;
  for (size_t c = 0; c < r.cells.size(); ++c) {
    const int32_t first = layer ? r.cells[c]->kv_head * group() : 0, count = layer ? group() : held.heads;
    const int32_t own = layer ? 0 : held.first_head;
    std::vector<RowMeasure> measures;
    for (int32_t h = first; h < first + count; ++h) {
      const ScoredRow row = scored_row_of(at, h);
      const auto& out = at.rows.caches[at.id].out;
      const size_t place = (size_t(h) * at.rows.count + at.row) * size_t(stream_.shape.v_dim);
      r.errors[c]->add(row, own + h - first, out.empty() ? nullptr : out.data() + place);
      measures.push_back(row.m);
    }
    r.errors[c]->add_recall(count, [&](int32_t i) -> const RowMeasure& { return measures[size_t(i)]; });
  }
}

// head: of the cache.
template <class Real>
ScoredRow HeadReplay<Real>::scored_row_of(const DeviceCell& at, int32_t head) const {
  const HeldTokens& held = device_caches_.held()[at.id];
  const DeviceRows::OfCache& cache = at.rows.caches[at.id];
  const size_t in_lane = size_t(head) * at.rows.count + at.row,
               in_stream = size_t(held.first_head + head) * at.rows.count + at.row;
  const DeviceRow& d = cache.rows[in_lane];
  ScoredRow row;
  row.token = at.token, row.v_dim = stream_.shape.v_dim;
  row.m = measure_of(d);
  if (!(row.m.tau > 0) || !std::isfinite(row.m.tau))
    throw LaneError("the denominator at token " + std::to_string(at.token) +
                    " is zero or not finite: nothing left to attend to");
  row.m.attended = device_caches_.attended(at.id, at.token);
  row.m.plain = !held.weighted;
  row.m.spread = device_caches_.lane(at.id).promise().spread;
  if (!cache.recalls.empty()) {
    const DeviceRecall& recall = cache.recalls[held.by_head ? in_lane : at.row];
    row.m.top_mass = double(recall.top_mass), row.m.index_recall = double(recall.index_recall);
  }
  row.set_distance({double(d.error2), double(d.exact2)}, tiny_norm());
  row.comparison = {double(d.mine2), double(d.inner), double(d.positive2), double(d.numerator2)};
  row.l2 = double(at.rows.l2[in_stream]);
  row.log_normaliser = at.rows.log_normaliser[in_stream];
  const ValueNorm& norm = at.norms[size_t(stream_.shape.block_of(held.first_head + head))];
  row.v_frobenius = norm.frobenius, row.v_operator = norm.spectral, row.v_largest = norm.largest;
  row.has_set = watch_.set_error;
  if (row.skipped) return row;
  row.prefix_error = double(d.prefix), row.set_error = double(d.set);
  return row;
}

template std::vector<int32_t> HeadReplay<float>::scored_rows() const;
template bool HeadReplay<float>::device_takes(const Replayed&) const;
template void HeadReplay<float>::give_to_device(size_t);
template void HeadReplay<float>::replay_on_device();
template std::vector<int32_t> HeadReplay<double>::scored_rows() const;
template bool HeadReplay<double>::device_takes(const Replayed&) const;
template void HeadReplay<double>::give_to_device(size_t);
template void HeadReplay<double>::replay_on_device();

}  // namespace kvreplay
