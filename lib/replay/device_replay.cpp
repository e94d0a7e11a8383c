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

// Whether it has the method's program, and room for the cache.
template <class Real>
bool HeadReplay<Real>::device_runs(const Replayed& r, const Lane<Real>& lane) const {
  const HeadShape shape{stream_.shape.dim, stream_.shape.v_dim, lane.heads(), stream_.shape.blocks};
  return device_->replays(r.cells.front()->method->programs, shape);
}

// Any other cache, from the first token on.
template <class Real>
bool HeadReplay<Real>::device_replays(const Replayed& r) const {
  if (device_ == nullptr) return false;
  return std::all_of(r.lanes.begin(), r.lanes.end(), [&](const auto& lane) {
    const bool other = r.streams_prompt() || lane->shortcut().kind == Shortcut::Kind::none;
    return other && lane->may_chain() && device_runs(r, *lane);
  });
}

// Prompts whose selection is long work, each budget a block of its own.
template <class Real>
bool HeadReplay<Real>::device_cuts(const Replayed& r) const {
  if (device_ == nullptr || r.streams_prompt()) return false;
  return std::all_of(r.lanes.begin(), r.lanes.end(),
                     [&](const auto& lane) { return lane->may_cut_elsewhere() && device_runs(r, *lane); });
}

template <class Real>
void HeadReplay<Real>::cut_on_device() {
  std::vector<ChainOrder> orders;
  std::vector<std::pair<size_t, Lane<Real>*>> cut;  // and whose decision it is
  each_prompt([&](size_t d, Lane<Real>& lane, const PromptSums& sums) {
    const Replayed& r = decisions_[d];
    if (!r.cut) return;
    orders.push_back(lane.chain(r.cells.front()->method->programs, sums));
    cut.emplace_back(d, &lane);
  });
  if (cut.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  const std::vector<ChainRecord> records = device_->cut(orders);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  for (size_t i = 0; i < cut.size(); ++i) {
    const auto [d, lane] = cut[i];
    guarded(decisions_[d], [&, l = lane] {
      l->check_chain(records[i].end);
      l->follow_cut(records[i], passed.count() / double(records.size()));
      l->forget_selection();
    });
  }
}

template <class Real>
void HeadReplay<Real>::order_chains(size_t decision, Lane<Real>& lane, const PromptSums& sums) {
  const Replayed& r = decisions_[decision];
  const auto is_it = [&](const auto& other) { return other.get() == &lane; };
  const size_t number = size_t(std::find_if(r.lanes.begin(), r.lanes.end(), is_it) - r.lanes.begin());
  chains_.push_back(lane.chain(r.cells.front()->method->programs, sums));
  chain_lanes_.push_back({decision, number});
}

template <class Real>
void HeadReplay<Real>::give_to_device(size_t decision) {
  const Replayed& r = decisions_[decision];
  const CommonOptions& options = r.cells.front()->options;
  for (size_t i = 0; i < r.lanes.size(); ++i) {
    Lane<Real>& lane = *r.lanes[i];
    device_caches_.add(lane, lane.shortcut(),
                       {options.order == Order::evict_then_attend, options.gqa_aggregate == Aggregate::mean,
                        watch_.prefix_error && options.phase == Phase::oneshot, watch_.set_error,
                        family_of(r, lane, lane.shortcut().kind)});
    device_lanes_.push_back({decision, i});
  }
}

template <class Real>
HeadDevice::Asked HeadReplay<Real>::asked_of_device() const {
  return {scored_rows(), options_.wanted.recalls, options_.save.outputs};
}

template <class Real>
void HeadReplay<Real>::replay_on_device() {
  device_caches_.decide(
      *device_, [&](size_t id, const auto& step) { guarded(decisions_[device_lanes_[id].decision], step); });
  const auto start = std::chrono::steady_clock::now();
  const HeadDevice::Asked asked = asked_of_device();
  device_->evaluate(device_caches_.held(), asked, [&](const DeviceRows& rows) { take(rows, asked.rows); });
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  for (size_t id = 0; id < device_lanes_.size(); ++id) {
    Replayed& r = decisions_[device_lanes_[id].decision];
    int64_t tokens = 0;
    for (const int32_t t : asked.rows) tokens += r.alive() ? device_caches_.attended(id, t) : 0;
    const HeldTokens& held = device_caches_.held()[id];
    r.lanes[device_lanes_[id].lane]->count_attended(tokens * held.heads,
                                                    int64_t(asked.rows.size()) * held.heads,
                                                    passed.count() / double(device_lanes_.size()));
  }
}

template <class Real>
void HeadReplay<Real>::replay_chains() {
  const auto start = std::chrono::steady_clock::now();
  const HeadDevice::Asked asked = asked_of_device();
  chain_tokens_.assign(chains_.size(), 0);
  const std::vector<ChainRecord> records =
      device_->replay(chains_, asked, [&](const DeviceRows& rows) { take_chains(rows, asked.rows); });
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  for (size_t id = 0; id < records.size(); ++id) {
    Replayed& r = decisions_[chain_lanes_[id].decision];
    Lane<Real>& lane = *r.lanes[chain_lanes_[id].lane];
    guarded(r, [&] {
      lane.check_chain(records[id].end);
      lane.follow_chain(records[id], scored_);
      lane.count_attended(chain_tokens_[id], int64_t(asked.rows.size()) * lane.heads(),
                          passed.count() / double(records.size()));
    });
  }
}

template <class Real>
void HeadReplay<Real>::take(const DeviceRows& rows, const std::vector<int32_t>& tokens) {
  for (size_t i = 0; i < rows.count; ++i) norms_.at(tokens[rows.first + i]);
  for (size_t id = 0; id < rows.caches.size(); ++id) {
    Replayed& r = decisions_[device_lanes_[id].decision];
    const HeldTokens& held = device_caches_.held()[id];
    const double spread = device_caches_.lane(id).error_bound().spread;
    guarded(r, [&] {
      for (size_t i = 0; i < rows.count; ++i) {
        const int32_t t = tokens[rows.first + i];
        const ChainRow about{device_caches_.attended(id, t), !held.weighted, spread};
        take_row(r, {rows, rows.caches[id], i, t, norms_.at(t), held.first_head, held.heads, held.by_head},
                 [&](int32_t) { return about; });
      }
    });
  }
}

template <class Real>
void HeadReplay<Real>::take_chains(const DeviceRows& rows, const std::vector<int32_t>& tokens) {
  for (size_t i = 0; i < rows.count; ++i) norms_.at(tokens[rows.first + i]);
  for (size_t i = 0; i < rows.caches.size(); ++i) {
    const size_t id = rows.first_cache + i;
    const DeviceRows::OfCache& cache = rows.caches[i];
    Replayed& r = decisions_[chain_lanes_[id].decision];
    const Lane<Real>& lane = *r.lanes[chain_lanes_[id].lane];
    const double spread = lane.error_bound().spread;
    guarded(r, [&] {
      lane.check_chain(cache.end);
      for (const ChainRow& about : cache.about) chain_tokens_[id] += about.attended;
      for (size_t row = 0; row < rows.count; ++row) {
        const int32_t t = tokens[rows.first + row];
        take_row(r, {rows, cache, row, t, norms_.at(t), lane.first_head(), lane.heads(), lane.heads_differ()},
                 [&](int32_t head) {
                   ChainRow about = cache.about[size_t(head) * rows.count + row];
                   if (about.spread == kUnset) about.spread = spread;
                   return about;
                 });
      }
    });
  }
}

template <class Real>
void HeadReplay<Real>::take_row(Replayed& r, const DeviceCell& at, const About& about) {
  const bool layer = stream_.shape.blocks > 1;
  for (size_t c = 0; c < r.cells.size(); ++c) {
    const int32_t first = layer ? r.cells[c]->kv_head * group() : 0, count = layer ? group() : at.heads;
    const int32_t own = layer ? 0 : at.first_head;
    std::vector<RowMeasure> measures;
    for (int32_t h = first; h < first + count; ++h) {
      const ScoredRow row = scored_row_of(at, h, about(h));
      const auto& out = at.cache.out;
      const size_t place = (size_t(h) * at.rows.count + at.row) * size_t(stream_.shape.v_dim);
      r.errors[c]->add(row, own + h - first, out.empty() ? nullptr : out.data() + place);
      measures.push_back(row.m);
    }
    r.errors[c]->add_recall(count, [&](int32_t i) -> const RowMeasure& { return measures[size_t(i)]; });
  }
}

// head: of the cache.
template <class Real>
ScoredRow HeadReplay<Real>::scored_row_of(const DeviceCell& at, int32_t head, const ChainRow& about) const {
  const size_t in_lane = size_t(head) * at.rows.count + at.row,
               in_stream = size_t(at.first_head + head) * at.rows.count + at.row;
  const DeviceRow& d = at.cache.rows[in_lane];
  ScoredRow row;
  row.set_token(at.token, stream_.window);
  row.v_dim = stream_.shape.v_dim;
  row.m = measure_of(d);
  if (!(row.m.tau > 0) || !std::isfinite(row.m.tau)) throw LaneError(no_denominator(at.token));
  row.m.attended = about.attended;
  row.m.plain = about.plain;
  row.m.spread = about.spread;
  if (!at.cache.recalls.empty()) {
    const DeviceRecall& recall = at.cache.recalls[at.by_head ? in_lane : at.row];
    row.m.top_mass = double(recall.top_mass), row.m.index_recall = double(recall.index_recall);
  }
  row.set_distance({double(d.error2), double(d.exact2)}, tiny_norm());
  row.comparison = {double(d.mine2), double(d.inner), double(d.positive2), double(d.numerator2)};
  row.l2 = double(at.rows.l2[in_stream]);
  row.log_normaliser = at.rows.log_normaliser[in_stream];
  const ValueNorm& norm = at.norms[size_t(stream_.shape.block_of(at.first_head + head))];
  row.v_frobenius = norm.frobenius, row.v_operator = norm.spectral, row.v_largest = norm.largest;
  row.has_set = watch_.set_error;
  if (row.skipped) return row;
  row.prefix_error = double(d.prefix);
  if (!about.plain) row.set_error = double(d.set);
  return row;
}

#define KVR_FOR(Real)                                                                   \
  template std::vector<int32_t> HeadReplay<Real>::scored_rows() const;                  \
  template bool HeadReplay<Real>::device_takes(const Replayed&) const;                  \
  template bool HeadReplay<Real>::device_replays(const Replayed&) const;                \
  template bool HeadReplay<Real>::device_cuts(const Replayed&) const;                   \
  template void HeadReplay<Real>::cut_on_device();                                      \
  template void HeadReplay<Real>::order_chains(size_t, Lane<Real>&, const PromptSums&); \
  template void HeadReplay<Real>::give_to_device(size_t);                               \
  template void HeadReplay<Real>::replay_on_device();                                   \
  template void HeadReplay<Real>::replay_chains();
KVR_FOR(float)
KVR_FOR(double)
#undef KVR_FOR

}  // namespace kvreplay
