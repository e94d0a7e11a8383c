#include <algorithm>
#include <cmath>

#include "device/head.hpp"

// Rows of caches on a device.

namespace kvreplay {
namespace {

constexpr size_t kSumsBytes = size_t{1} << 29;           // parts of a portion of rows
constexpr int64_t kProbabilityBytes = int64_t{1} << 28;  // rows that are ranked at a time
constexpr double kLn2 = 0.69314718055994530942;

// Calls take(first, tokens) for `step` rows at a time, in order.
void in_portions(const std::vector<int32_t>& rows, size_t step,
                 const std::function<void(size_t, std::vector<int32_t>)>& take) {
  for (size_t first = 0; first < rows.size(); first += step) {
    const size_t end = std::min(rows.size(), first + step);
    take(first, {rows.begin() + int64_t(first), rows.begin() + int64_t(end)});
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
  return portion_rows(kSumsBytes, row_bytes, most_.rows);
}

void DeviceHead::evaluate(const std::vector<DeviceCache>& caches, const Asked& asked, const Take& take) {
  if (asked.rows.empty()) return;
  in_portions(asked.rows, rows_at_once(caches, asked), [&](size_t first, std::vector<int32_t> tokens) {
    DeviceRows result;
    result.first = first, result.count = tokens.size();
    evaluate_rows(caches, asked, load_rows(std::move(tokens)), result, take);
  });
}

void DeviceHead::evaluate_rows(const std::vector<DeviceCache>& caches, const Asked& asked, const Rows& rows,
                               DeviceRows& result, const Take& take) {
  const KeyLists lists(caches, rows.tokens, stream_.prompt, heads(), asked.recalls);
  const KeyLists::OnDevice keys = lists.upload(runtime_);
  const Sums sums = make_sums(lists.parts(), result.count, true);
  const Exact exact = attend(rows, keys, sums, true);
  RowsOnDevice rows_on_device{rows, {}, {}, {}};
  for (size_t id = 0; id < caches.size(); ++id) {
    const DeviceCache& cache = caches[id];
    const KeyLists::Lists& of = lists.caches()[id];
    rows_on_device.add({of.all, of.set, cache.prefix, cache.first_head, cache.heads, 0});
    if (!asked.recalls) continue;
    RecallCache& recall = rows_on_device.recalls.emplace_back();
    recall.part = keys.wholes[id], recall.later_from = cache.held.later ? stream_.prompt : kNoRun;
    recall.by_head = cache.by_head ? 1 : 0, recall.first_row = rows_on_device.caches.back().first_row;
  }
  rows_on_device.results = results_of(rows_on_device);
  merge(rows_on_device, keys.refs.data(), merge_input(rows, sums), exact, asked.outputs, result, take);
}

DeviceArray<RowResult> DeviceHead::results_of(const RowsOnDevice& rows_on_device) {
  if (rows_on_device.caches.empty()) return {};
  const MergeCache& last = rows_on_device.caches.back();
  return {runtime_, size_t(last.first_row) + size_t(last.heads) * rows_on_device.rows.tokens.size()};
}

// Computes the rows of each cache from the sums of parts, and passes them on.
void DeviceHead::merge(RowsOnDevice& rows_on_device, const PartRef* refs, const MergeInput& in, const Exact& exact,
                       bool outputs, DeviceRows& rows, const Take& take) {
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
  download_exact(exact, rows);
  rows.fetch = [&](size_t id, DeviceRows::OfCache& into) {
    const MergeCache& cache = rows_on_device.caches[id];
    const size_t first = size_t(cache.first_row), count = size_t(cache.heads) * rows.count;
    into.of.resize(count), into.out.resize(outputs ? count * v_dim : 0), into.projections.resize(count * samples);
    rows_on_device.results.download(into.of, first);
    out.download(into.out, first * v_dim);
    projections.download(into.projections, first * samples);
    runtime_.wait();
  };
  take(rows);
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

}  // namespace kvreplay
