#include <algorithm>
#include <cmath>

#include "device/head.hpp"

// Rows of caches on a device: caches that hold tokens unchanged, and caches that the device replays itself.

namespace kvreplay {
namespace {

constexpr size_t kSumsBytes = size_t{1} << 29;           // parts of a portion of rows
constexpr size_t kPolicyBytes = size_t{2} << 30;         // policies that are replayed together
constexpr int64_t kProbabilityBytes = int64_t{1} << 28;  // rows that are ranked at a time
constexpr double kLn2 = 0.69314718055994530942;

// As many rows as there is room for, in whole tiles.
size_t portion_rows(size_t row_bytes, size_t most) {
  return std::max(size_t{64}, std::min(kSumsBytes / row_bytes, most) / 64 * 64);
}

// Calls take(first, tokens) for `step` rows at a time, in order.
void in_portions(const std::vector<int32_t>& rows, size_t step,
                 const std::function<void(size_t, std::vector<int32_t>)>& take) {
  for (size_t first = 0; first < rows.size(); first += step) {
    const size_t end = std::min(rows.size(), first + step);
    take(first, {rows.begin() + int64_t(first), rows.begin() + int64_t(end)});
  }
}

// Calls take(policies) for as many policies at a time as there is room for, in order.
void in_batches(const HeadStream<float>& stream, const std::vector<DevicePolicy>& policies,
                const std::function<void(std::span<const DevicePolicy>)>& take) {
  for (size_t first = 0; first < policies.size();) {
    size_t bytes = 0, end = first;
    do bytes += device_bytes_of(stream, policies[end++]);
    while (end < policies.size() && bytes + device_bytes_of(stream, policies[end]) <= kPolicyBytes);
    take(std::span(policies).subspan(first, end - first));
    first = end;
  }
}

}  // namespace

void DeviceHead::RowsOnDevice::add(const MergeCache& cache) {
  const int64_t first_row =
      caches.empty() ? 0 : caches.back().first_row + int64_t(caches.back().heads) * int64_t(rows.tokens.size());
  caches.push_back(cache);
  caches.back().first_row = first_row;
}

// Rows whose sums and lists fit into a portion, in whole tiles. The lists of one tile are the sample.
size_t DeviceHead::rows_at_once(const std::vector<DeviceCache>& caches, const Asked& asked) const {
  const std::vector<int32_t> some(asked.rows.end() - int64_t(std::min<size_t>(64, asked.rows.size())),
                                  asked.rows.end());
  const KeyLists lists(caches, some, stream_.prompt, heads(), asked.recalls);
  const size_t row_bytes =
      lists.parts() * size_t(heads()) * size_t(width_ + 4) * sizeof(float) + lists.entries() * 16 / 64;
  return portion_rows(row_bytes, most_.rows);
}

void DeviceHead::evaluate(const std::vector<DeviceCache>& caches, const Asked& asked, const Take& take) {
  if (asked.rows.empty()) return;
  in_portions(asked.rows, rows_at_once(caches, asked), [&](size_t first, std::vector<int32_t> tokens) {
    DeviceRows result;
    result.first = first, result.count = tokens.size();
    evaluate_rows(caches, asked, load_rows(std::move(tokens)), result);
    take(result);
  });
}

void DeviceHead::evaluate_rows(const std::vector<DeviceCache>& caches, const Asked& asked, const Rows& rows,
                               DeviceRows& result) {
  const KeyLists lists(caches, rows.tokens, stream_.prompt, heads(), asked.recalls);
  const KeyLists::OnDevice keys = lists.upload(runtime_);
  const Sums sums = make_sums(lists.parts(), result.count, true);
  const Exact exact = attend(rows, keys, sums, true);
  RowsOnDevice rows_on_device{rows, {}, {}, {}};
  for (size_t id = 0; id < caches.size(); ++id) {
    const DeviceCache& cache = caches[id];
    const KeyLists::Lists& of = lists.caches()[id];
    rows_on_device.add({of.all, of.set, cache.prefix, false, cache.first_head, cache.heads, 0});
    if (!asked.recalls) continue;
    RecallCache& recall = rows_on_device.recalls.emplace_back();
    recall.part = keys.wholes[id], recall.later_from = cache.held.later ? stream_.prompt : kNoRun;
    recall.by_head = cache.by_head ? 1 : 0, recall.first_row = rows_on_device.caches.back().first_row;
  }
  rows_on_device.results = results_of(rows_on_device);
  merge(rows_on_device, keys.refs.data(), merge_input(rows, sums), exact, asked.outputs, result);
}

DeviceArray<RowResult> DeviceHead::results_of(const RowsOnDevice& rows_on_device) {
  if (rows_on_device.caches.empty()) return {};
  const MergeCache& last = rows_on_device.caches.back();
  return {runtime_, size_t(last.first_row) + size_t(last.heads) * rows_on_device.rows.tokens.size()};
}

// Computes the rows of each cache from the sums of parts.
void DeviceHead::merge(RowsOnDevice& rows_on_device, const PartRef* refs, const MergeInput& in, const Exact& exact,
                       bool outputs, DeviceRows& rows) {
  const DeviceArray<MergeCache> caches(runtime_, std::span<const MergeCache>(rows_on_device.caches));
  const size_t v_dim = size_t(stream_.shape.v_dim);
  const size_t samples = size_t(stream_.sensitivity.samples);
  DeviceArray<float> out, projections;
  if (outputs) out = DeviceArray<float>(runtime_, rows_on_device.results.size() * v_dim);
  if (samples > 0) projections = DeviceArray<float>(runtime_, rows_on_device.results.size() * samples);
  const DeviceArray<uint16_t> gradient = gradient_of(rows_on_device.rows);
  runtime_.run(CacheMergeKernel{in,
                                exact.view(),
                                refs,
                                caches.data(),
                                int32_t(caches.size()),
                                PartRef{0, 1, 1},
                                rows_on_device.results.data(),
                                out.data(),
                                {gradient.data(), projections.data(), int32_t(samples)}});
  if (!rows_on_device.recalls.empty()) find_recalls(rows_on_device, exact);
  std::vector<RowResult> results(rows_on_device.results.size());
  std::vector<float> of_out(out.size()), of_projections(projections.size());
  rows_on_device.results.download(results);
  out.download(of_out);
  projections.download(of_projections);
  runtime_.wait();
  const auto part = [](const std::vector<float>& all, size_t begin, size_t end) {
    return std::vector<float>(all.begin() + int64_t(begin), all.begin() + int64_t(end));
  };
  for (const MergeCache& cache : rows_on_device.caches) {
    const size_t first = size_t(cache.first_row), count = size_t(cache.heads) * rows.count;
    DeviceRows::OfCache& of = rows.caches.emplace_back();
    of.of.assign(results.begin() + int64_t(first), results.begin() + int64_t(first + count));
    if (outputs) of.out = part(of_out, first * v_dim, (first + count) * v_dim);
    of.projections = part(of_projections, first * samples, (first + count) * samples);
  }
  download_exact(exact, rows);
}

// [heads, rows, samples, v_dim]: zeros for rows without a gradient; empty if the stream has none.
DeviceArray<uint16_t> DeviceHead::gradient_of(const Rows& rows) {
  const Sensitivity& from = stream_.sensitivity;
  if (from.empty()) return {};
  const size_t row = size_t(from.samples) * size_t(from.v_dim), count = rows.tokens.size();
  std::vector<uint16_t> numbers(size_t(heads()) * count * row, 0);
  for (int32_t h = 0; h < heads(); ++h)
    for (size_t r = 0; r < count; ++r)
      if (const uint16_t* const g = from.at(h, rows.tokens[r]); g != nullptr)
        std::copy_n(g, row, numbers.begin() + int64_t((size_t(h) * count + r) * row));
  DeviceArray<uint16_t> uploaded(runtime_, std::span<const uint16_t>(numbers));
  runtime_.wait();  // `numbers` is freed next
  return uploaded;
}

// Ranks a few rows at a time, because the probabilities of a row over the whole trace are held in memory.
void DeviceHead::find_recalls(RowsOnDevice& rows_on_device, const Exact& exact) {
  const bool by_head = std::any_of(rows_on_device.recalls.begin(), rows_on_device.recalls.end(),
                                   [](const RecallCache& cache) { return cache.by_head != 0; });
  const Rows& rows = rows_on_device.rows;
  const int32_t planes = by_head ? heads() + 1 : 1, pitch = (rows.tokens.back() + 4) / 4 * 4;
  const int32_t count = int32_t(rows.tokens.size());
  const int32_t step =
      int32_t(std::clamp<int64_t>(kProbabilityBytes / (int64_t(planes) * pitch * 4), 1, int64_t(count)));
  const DeviceArray<RecallCache> caches(runtime_, std::span<const RecallCache>(rows_on_device.recalls));
  const DeviceArray<float> p(runtime_, size_t(planes) * size_t(step) * size_t(pitch));
  for (int32_t first = 0; first < count; first += step) {
    const int32_t some = std::min(step, count - first);
    runtime_.run(
        ProbabilityKernel{{rows.numbers.data(), keys_.data(), rows.token.data(), exact.top.data(), exact.z.data(),
                           p.data(), count, stream_.tokens, heads(), heads() / stream_.shape.blocks, stream_.shape.dim,
                           first, some, planes, pitch, stream_.rule.scale, stream_.rule.softcap, stream_.window}});
    runtime_.run(RecallKernel{{p.data(), rows.token.data(), caches.data(), rows_on_device.results.data(), count,
                               int32_t(caches.size()), first, some, planes, pitch, stream_.window}});
  }
  runtime_.wait();  // intermediate arrays are freed next
}

void DeviceHead::download_exact(const Exact& exact, DeviceRows& rows) {
  const size_t cells = size_t(heads()) * rows.count;
  rows.l2.resize(cells);
  std::vector<float> top(cells), z(cells);
  exact.l2.download(rows.l2);
  exact.top.download(top);
  exact.z.download(z);
  runtime_.wait();
  rows.log_normaliser.resize(cells);
  for (size_t i = 0; i < cells; ++i) rows.log_normaliser[i] = std::log(double(z[i])) + double(top[i]) * kLn2;
}

bool DeviceHead::runs(const DevicePrograms& programs, const HeadShape& shape) const {
  return runtime_.has(programs) && PolicyRoom::of(shape, kPolicyThreads).bytes <= runtime_.most_shared_bytes();
}

PolicyBatch DeviceHead::batch_of(std::span<const DevicePolicy> policies, bool recalls) {
  return {runtime_, stream_, keys_.data(), sink_logits_.data(), policies, recalls, most_.tokens};
}

std::vector<DevicePolicyRecord> DeviceHead::cut(const std::vector<DevicePolicy>& policies) {
  std::vector<DevicePolicyRecord> records;
  in_batches(stream_, policies, [&](std::span<const DevicePolicy> some) {
    for (DevicePolicyRecord& record : batch_of(some, false).finish()) records.push_back(std::move(record));
  });
  return records;
}

std::vector<DevicePolicyRecord> DeviceHead::replay(const std::vector<DevicePolicy>& policies, const Asked& asked,
                                                   const Take& take) {
  std::vector<DevicePolicyRecord> records;
  in_batches(stream_, policies, [&](std::span<const DevicePolicy> some) { replay_some(some, asked, take, records); });
  return records;
}

void DeviceHead::replay_some(std::span<const DevicePolicy> policies, const Asked& asked, const Take& take,
                             std::vector<DevicePolicyRecord>& records) {
  PolicyBatch batch = batch_of(policies, asked.recalls);
  size_t parts = KeyLists::kExactRefs;
  for (const DevicePolicy& p : policies) parts += size_t(parts_of(p));
  const size_t row_bytes = batch.row_bytes() + parts * size_t(heads()) * size_t(width_ + 4) * sizeof(float);
  in_portions(asked.rows, portion_rows(row_bytes, most_.rows), [&](size_t first, std::vector<int32_t> tokens) {
    DeviceRows result;
    result.first = first, result.count = tokens.size(), result.first_cache = records.size();
    replay_rows(batch, policies, asked, load_rows(std::move(tokens)), result);
    take(result);
  });
  const std::vector<int32_t> nobody;
  batch.advance(stream_.tokens, {&nobody, {}, width_, 0, nullptr});
  for (DevicePolicyRecord& record : batch.finish()) records.push_back(std::move(record));
}

void DeviceHead::replay_rows(PolicyBatch& batch, std::span<const DevicePolicy> policies, const Asked& asked,
                             const Rows& rows, DeviceRows& result) {
  const KeyLists lists({}, rows.tokens, stream_.prompt, heads());
  const KeyLists::OnDevice keys = lists.upload(runtime_);
  int32_t part = int32_t(lists.parts());
  std::vector<PartRef> refs = lists.refs();
  RowsOnDevice rows_on_device{rows, {}, {}, {}};
  for (const DevicePolicy& p : policies) {
    const PartList all{int32_t(refs.size()), p.prefix ? 2 : 1, p.prefix ? 1 : 0};
    const PartList set{all.first + all.count, p.set ? 1 : 0, 0};
    for (int32_t i = 0; i < parts_of(p); ++i) refs.push_back({part++, 1, 1});
    rows_on_device.add({all, set, p.prefix, true, p.first_head, p.memory.shape.heads, 0});
  }
  rows_on_device.results = results_of(rows_on_device);
  const Sums sums = make_sums(size_t(part), result.count, true);
  const Exact exact = attend(rows, keys, sums, true);
  batch.advance(rows.tokens.back() + 1,
                {&rows.tokens, sums.view(), width_, int32_t(lists.parts()), rows_on_device.results.data()});
  const DeviceArray<PartRef> all_refs(runtime_, std::span<const PartRef>(refs));
  for (size_t i = 0; i < policies.size() && asked.recalls; ++i) {
    rows_on_device.recalls.push_back(batch.recall(i));
    rows_on_device.recalls.back().first_row = rows_on_device.caches[i].first_row;
  }
  merge(rows_on_device, all_refs.data(), merge_input(rows, sums), exact, asked.outputs, result);
  const std::vector<PolicyEnd> ends = batch.ends();
  for (size_t i = 0; i < policies.size(); ++i) result.caches[i].end = ends[i];
}

}  // namespace kvreplay
