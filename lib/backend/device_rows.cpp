#include <algorithm>
#include <cmath>

#include "backend/device_head.hpp"

// Rows of caches on a device: of those that hold tokens as they stand, and of those that it replays itself.

namespace kvreplay {
namespace {

constexpr size_t kSumsBytes = size_t{1} << 29;  // of the parts of a portion of rows
constexpr size_t kMostRows = 8192;
constexpr size_t kChainBytes = size_t{2} << 30;          // of chains that are replayed together
constexpr int64_t kProbabilityBytes = int64_t{1} << 28;  // of the rows that are ranked at a time
constexpr double kLn2 = 0.69314718055994530942;

// As many as there is room for, in whole tiles.
size_t portion_rows(size_t row_bytes) {
  return std::clamp(kSumsBytes / row_bytes / 64 * 64, size_t{64}, kMostRows);
}

// take(first, tokens) for `step` rows at a time, in order.
void in_portions(const std::vector<int32_t>& rows, size_t step,
                 const std::function<void(size_t, std::vector<int32_t>)>& take) {
  for (size_t first = 0; first < rows.size(); first += step) {
    const size_t end = std::min(rows.size(), first + step);
    take(first, {rows.begin() + int64_t(first), rows.begin() + int64_t(end)});
  }
}

// take(orders) for as many at a time as there is room for, in order.
void in_batches(const HeadStream<float>& stream, const std::vector<ChainOrder>& orders,
                const std::function<void(std::span<const ChainOrder>)>& take) {
  for (size_t first = 0; first < orders.size();) {
    size_t bytes = 0, end = first;
    do bytes += chain_bytes(stream, orders[end++]);
    while (end < orders.size() && bytes + chain_bytes(stream, orders[end]) <= kChainBytes);
    take(std::span(orders).subspan(first, end - first));
    first = end;
  }
}

}  // namespace

// What a portion's sums and lists may take, in whole tiles. Lists of one tile tell.
size_t DeviceHead::rows_at_once(const std::vector<HeldTokens>& caches, const Asked& asked) const {
  const std::vector<int32_t> some(asked.rows.end() - int64_t(std::min<size_t>(64, asked.rows.size())),
                                  asked.rows.end());
  const KeyLists lists(caches, some, stream_.prompt, heads(), asked.recalls);
  const size_t row_bytes =
      lists.parts() * size_t(heads()) * size_t(width_ + 4) * sizeof(float) + lists.entries() * 16 / 64;
  return portion_rows(row_bytes);
}

void DeviceHead::evaluate(const std::vector<HeldTokens>& caches, const Asked& asked,
                          const std::function<void(const DeviceRows&)>& take) {
  if (asked.rows.empty()) return;
  in_portions(asked.rows, rows_at_once(caches, asked), [&](size_t first, std::vector<int32_t> tokens) {
    DeviceRows result;
    result.first = first, result.count = tokens.size();
    evaluate_rows(caches, asked, load_rows(std::move(tokens)), result);
    take(result);
  });
}

void DeviceHead::evaluate_rows(const std::vector<HeldTokens>& caches, const Asked& asked, Rows rows,
                               DeviceRows& result) {
  const KeyLists lists(caches, rows.tokens, stream_.prompt, heads(), asked.recalls);
  const KeyLists::OnDevice keys = lists.upload(runtime_);
  const Sums sums = make_sums(lists.parts(), result.count, true);
  const Exact exact = attend(rows, keys, sums, true);
  Merge how{{}, keys.refs.data(), asked.outputs};
  std::vector<RecallLane> recalls;
  for (size_t id = 0; id < caches.size(); ++id) {
    const HeldTokens& cache = caches[id];
    const KeyLists::Lists& of = lists.caches()[id];
    how.lanes.push_back({of.all, of.set, cache.prefix, cache.first_head, cache.heads, 0});
    if (!asked.recalls) continue;
    RecallLane lane{};
    lane.part = keys.wholes[id], lane.later_from = cache.later ? stream_.prompt : kNoRun;
    lane.by_head = cache.by_head ? 1 : 0;
    recalls.push_back(lane);
  }
  merge(std::move(how), merge_input(rows, sums), exact, result);
  if (asked.recalls) find_recalls(std::move(recalls), rows, exact, result);
}

void DeviceHead::merge(Merge how, const MergeInput& in, const Exact& exact, DeviceRows& result) {
  int64_t cells = 0;
  for (MergeLane& lane : how.lanes) {
    lane.first_row = cells;
    cells += int64_t(lane.heads) * int64_t(result.count);
  }
  const DeviceArray<MergeLane> lanes(runtime_, std::span<const MergeLane>(how.lanes));
  const DeviceArray<DeviceRow> merged(runtime_, size_t(cells));
  const size_t v_dim = size_t(stream_.shape.v_dim);
  DeviceArray<float> out;
  if (how.outputs) out = DeviceArray<float>(runtime_, size_t(cells) * v_dim);
  runtime_.run(LaneMergeKernel{in, exact.view(), how.refs, lanes.data(), int32_t(lanes.size()),
                               PartRef{0, 1, 1}, merged.data(), out.data()});
  std::vector<DeviceRow> of_rows(merged.size());
  std::vector<float> of_out(out.size());
  merged.download(of_rows);
  out.download(of_out);
  runtime_.wait();
  for (const MergeLane& lane : how.lanes) {
    const size_t first = size_t(lane.first_row), count = size_t(lane.heads) * result.count;
    DeviceRows::OfCache of;
    of.rows.assign(of_rows.begin() + int64_t(first), of_rows.begin() + int64_t(first + count));
    if (how.outputs)
      of.out.assign(of_out.begin() + int64_t(first * v_dim),
                    of_out.begin() + int64_t((first + count) * v_dim));
    result.caches.push_back(std::move(of));
  }
  download_exact(exact, result);
}

bool DeviceHead::replays(const ChainPrograms& programs, const HeadShape& shape) const {
  return runtime_.has(programs) && ChainRoom::of(shape, kChainThreads).bytes <= runtime_.most_shared_bytes();
}

DeviceChains DeviceHead::chains_of(std::span<const ChainOrder> orders, bool recalls) {
  return {runtime_, stream_, keys_.data(), sink_logits_.data(), orders, recalls};
}

std::vector<ChainRecord> DeviceHead::cut(const std::vector<ChainOrder>& orders) {
  std::vector<ChainRecord> records;
  in_batches(stream_, orders, [&](std::span<const ChainOrder> some) {
    for (ChainRecord& record : chains_of(some, false).finish()) records.push_back(std::move(record));
  });
  return records;
}

std::vector<ChainRecord> DeviceHead::replay(const std::vector<ChainOrder>& orders, const Asked& asked,
                                            const std::function<void(const DeviceRows&)>& take) {
  std::vector<ChainRecord> records;
  in_batches(stream_, orders,
             [&](std::span<const ChainOrder> some) { replay_some(some, asked, take, records); });
  return records;
}

void DeviceHead::replay_some(std::span<const ChainOrder> orders, const Asked& asked,
                             const std::function<void(const DeviceRows&)>& take,
                             std::vector<ChainRecord>& records) {
  DeviceChains chains = chains_of(orders, asked.recalls);
  size_t parts = KeyLists::kExactRefs;
  for (const ChainOrder& o : orders) parts += size_t(parts_of(o));
  const size_t row_bytes = chains.row_bytes() + parts * size_t(heads()) * size_t(width_ + 4) * sizeof(float);
  in_portions(asked.rows, portion_rows(row_bytes), [&](size_t first, std::vector<int32_t> tokens) {
    DeviceRows result;
    result.first = first, result.count = tokens.size(), result.first_cache = records.size();
    replay_rows(chains, orders, asked, load_rows(std::move(tokens)), result);
    take(result);
  });
  const std::vector<int32_t> nobody;
  chains.advance(stream_.tokens, {&nobody, {}, width_, 0});
  for (ChainRecord& record : chains.finish()) records.push_back(std::move(record));
}

void DeviceHead::replay_rows(DeviceChains& chains, std::span<const ChainOrder> orders, const Asked& asked,
                             Rows rows, DeviceRows& result) {
  const KeyLists lists({}, rows.tokens, stream_.prompt, heads());
  const KeyLists::OnDevice keys = lists.upload(runtime_);
  int32_t part = int32_t(lists.parts());
  std::vector<PartRef> refs = lists.refs();
  Merge how{{}, nullptr, asked.outputs};
  for (const ChainOrder& o : orders) {
    const PartList all{int32_t(refs.size()), o.prefix ? 2 : 1, o.prefix ? 1 : 0};
    const PartList set{all.first + all.count, o.set ? 1 : 0, 0};
    for (int32_t i = 0; i < parts_of(o); ++i) refs.push_back({part++, 1, 1});
    how.lanes.push_back({all, set, o.prefix, o.first_head, o.memory.shape.heads, 0});
  }
  const Sums sums = make_sums(size_t(part), result.count, true);
  const Exact exact = attend(rows, keys, sums, true);
  chains.advance(rows.tokens.back() + 1, {&rows.tokens, sums.view(), width_, int32_t(lists.parts())});
  const DeviceArray<PartRef> all_refs(runtime_, std::span<const PartRef>(refs));
  how.refs = all_refs.data();
  merge(std::move(how), merge_input(rows, sums), exact, result);
  std::vector<RecallLane> recalls;
  const std::vector<ChainEnd> ends = chains.ends();
  for (size_t i = 0; i < orders.size(); ++i) {
    result.caches[i].about = chains.cells(i), result.caches[i].end = ends[i];
    if (asked.recalls) recalls.push_back(chains.recall(i));
  }
  if (asked.recalls) find_recalls(std::move(recalls), rows, exact, result);
}

// Rows a few at a time: the probabilities of a row over the whole trace stand in memory.
void DeviceHead::find_recalls(std::vector<RecallLane> lanes, const Rows& rows, const Exact& exact,
                              DeviceRows& result) {
  bool by_head = false;
  int32_t results = 0;
  for (RecallLane& lane : lanes) {
    lane.result = results;
    results += lane.by_head != 0 ? lane.part.heads : 1;
    by_head = by_head || lane.by_head != 0;
  }
  const int32_t planes = by_head ? heads() + 1 : 1, pitch = (rows.tokens.back() + 4) / 4 * 4;
  const int32_t count = int32_t(rows.tokens.size());
  const int32_t step =
      int32_t(std::clamp<int64_t>(kProbabilityBytes / (int64_t(planes) * pitch * 4), 1, int64_t(count)));
  const size_t cells = size_t(results) * rows.tokens.size();
  const DeviceArray<RecallLane> on_device(runtime_, std::span<const RecallLane>(lanes));
  const DeviceArray<float> p(runtime_, size_t(planes) * size_t(step) * size_t(pitch)),
      top_mass(runtime_, cells), index_recall(runtime_, cells);
  for (int32_t first = 0; first < count; first += step) {
    const int32_t some = std::min(step, count - first);
    runtime_.run(ProbabilityKernel{{rows.numbers.data(), keys_.data(), rows.token.data(), exact.top.data(),
                                    exact.z.data(), p.data(), count, stream_.tokens, heads(),
                                    heads() / stream_.shape.blocks, stream_.shape.dim, first, some, planes,
                                    pitch, stream_.rule.scale, stream_.rule.softcap, stream_.window}});
    runtime_.run(
        RecallKernel{{p.data(), rows.token.data(), on_device.data(), top_mass.data(), index_recall.data(),
                      count, int32_t(lanes.size()), first, some, planes, pitch, stream_.window}});
  }
  std::vector<float> mass(cells), share(cells);
  top_mass.download(mass);
  index_recall.download(share);
  runtime_.wait();
  for (size_t id = 0; id < lanes.size(); ++id) {
    const size_t first = size_t(lanes[id].result) * rows.tokens.size(),
                 end = id + 1 < lanes.size() ? size_t(lanes[id + 1].result) * rows.tokens.size() : cells;
    for (size_t i = first; i < end; ++i) result.caches[id].recalls.push_back({mass[i], share[i]});
  }
}

void DeviceHead::download_exact(const Exact& exact, DeviceRows& result) {
  const size_t cells = size_t(heads()) * result.count;
  result.l2.resize(cells);
  std::vector<float> top(cells), z(cells);
  exact.l2.download(result.l2);
  exact.top.download(top);
  exact.z.download(z);
  runtime_.wait();
  result.log_normaliser.resize(cells);
  for (size_t i = 0; i < cells; ++i)
    result.log_normaliser[i] = std::log(double(z[i])) + double(top[i]) * kLn2;
}

}  // namespace kvreplay
