#include "backend/device_head.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "backend/kernels_of.hpp"
#include "backend/query_rows.hpp"
#include "base/errors.hpp"
#include "replay/failures.hpp"

namespace kvreplay {
namespace {

bool all_bf16(const std::vector<float>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](float x) { return from_bf16(bf16(x)) == x; });
}

// Every number in 16 bits, of the queries those that are held.
bool is_bf16(const HeadStream<float>& stream) {
  return stream.stored_bytes == 2 && all_bf16(stream.keys) && all_bf16(stream.values) &&
         all_bf16(stream.queries);
}

std::string failure_of(const ScoreChainEnd& end) {
  const std::string at = " at token " + std::to_string(end.token);
  switch (end.why) {
    case ScoreChainEnd::done:
      return "";
    case ScoreChainEnd::denominator:
      return no_denominator(end.token);
    case ScoreChainEnd::score:
      return "a score of the prompt is not finite";
    case ScoreChainEnd::protection:
      return "more tokens are protected" + at + " than the budget holds";
  }
  return "";
}

}  // namespace

DeviceHead::DeviceHead(Runtime& runtime, const HeadStream<float>& stream)
    : runtime_(runtime),
      stream_(stream),
      width_(padded_width(std::max(stream.shape.dim, stream.shape.v_dim))),
      grade_(is_bf16(stream) ? Grade::recorded : Grade::single) {
  require_kernels();
  const int64_t rows = int64_t(stream.shape.blocks) * stream.tokens;
  keys_ = DeviceArray<float>(runtime, std::span(stream.keys));
  key_planes_ = pack(keys_, rows, stream.shape.dim);
  const DeviceArray<float> values(runtime, std::span(stream.values));
  value_planes_ = pack(values, rows, stream.shape.v_dim);
  if (!stream.sink_logits.empty()) sink_logits_ = DeviceArray<float>(runtime, std::span(stream.sink_logits));
  runtime.wait();  // `values` goes
}

void DeviceHead::require_kernels() const {
  const std::string heads_of =
      "heads of " + std::to_string(std::max(stream_.shape.dim, stream_.shape.v_dim)) + " numbers ";
  if (width_ == 0)
    throw DeviceError(heads_of + "are wider than the device's kernels (256); use --device cpu");
  const size_t needed = shared_bytes_needed(width_, grade_), there = runtime_.most_shared_bytes();
  if (needed > there)
    throw DeviceError(heads_of + "need " + std::to_string(needed >> 10) +
                      " KiB of shared memory a block, and the device has " + std::to_string(there >> 10) +
                      "; use --device cpu");
}

auto DeviceHead::pack(const DeviceArray<float>& numbers, int64_t rows, int32_t dim) -> Planes {
  Planes planes;
  const size_t count = size_t(rows) * size_t(width_);
  planes.high = DeviceArray<uint16_t>(runtime_, count);
  if (grade_ == Grade::single) planes.low = DeviceArray<uint16_t>(runtime_, count);
  runtime_.run(PackKernel{numbers.data(), planes.high.data(), planes.low.data(), rows, dim, width_});
  return planes;
}

auto DeviceHead::load_rows(std::vector<int32_t> tokens) -> Rows {
  const std::vector<float> numbers = queries_of(stream_, tokens);
  Rows rows;
  rows.token = DeviceArray<int32_t>(runtime_, std::span<const int32_t>(tokens));
  rows.numbers = DeviceArray<float>(runtime_, std::span<const float>(numbers));
  rows.planes = pack(rows.numbers, int64_t(heads()) * int64_t(tokens.size()), stream_.shape.dim);
  rows.tokens = std::move(tokens);
  return rows;
}

auto DeviceHead::make_sums(size_t parts, size_t rows, bool values) -> Sums {
  const size_t cells = parts * size_t(heads()) * rows;
  const auto array = [&](size_t count) { return DeviceArray<float>(runtime_, count); };
  Sums sums{array(cells), array(cells), array(cells), array(cells), {}};
  if (values) sums.out = array(cells * size_t(width_));
  return sums;
}

auto DeviceHead::make_exact(size_t rows, bool values) -> Exact {
  const size_t cells = size_t(heads()) * rows;
  const auto array = [&](size_t count) { return DeviceArray<float>(runtime_, count); };
  Exact exact{array(cells), array(cells), array(cells), {}};
  if (values) exact.out = array(cells * size_t(width_));
  return exact;
}

AttendArgs DeviceHead::attend_args(const Rows& rows, const DeviceArray<AttendPart>& parts,
                                   const Sums& sums) const {
  return {rows.planes.high.data(),
          rows.planes.low.data(),
          key_planes_.high.data(),
          key_planes_.low.data(),
          value_planes_.high.data(),
          value_planes_.low.data(),
          rows.token.data(),
          parts.data(),
          sums.view(),
          int32_t(rows.tokens.size()),
          stream_.tokens,
          heads(),
          heads() / stream_.shape.blocks,
          int32_t(parts.size()),
          stream_.rule.scale,
          stream_.rule.softcap,
          stream_.window};
}

MergeInput DeviceHead::merge_input(const Rows& rows, const Sums& sums) const {
  return {sums.view(), sink_logits_.data(), heads(), int32_t(rows.tokens.size()),
          width_,      stream_.shape.v_dim};
}

// Sums of the lists, and from them the exact rows.
auto DeviceHead::attend(const Rows& rows, const KeyLists::OnDevice& keys, const Sums& sums, bool values)
    -> Exact {
  runtime_.attend(attend_args(rows, keys.parts, sums), width_, grade_, values);
  Exact exact = make_exact(rows.tokens.size(), values);
  runtime_.run(
      ExactMergeKernel{merge_input(rows, sums), exact.view(), keys.refs.data(), KeyLists::kExactRefs});
  return exact;
}

// Largest logit and normaliser of every row.
auto DeviceHead::find_normalisers(const Rows& rows) -> Exact {
  const KeyLists lists({}, rows.tokens, stream_.prompt, heads());
  const KeyLists::OnDevice keys = lists.upload(runtime_);
  const Sums sums = make_sums(lists.parts(), rows.tokens.size(), false);
  return attend(rows, keys, sums, false);
}

ColumnArgs DeviceHead::column_args(const Rows& rows, const Exact& exact, int32_t columns) const {
  return {rows.planes.high.data(),
          rows.planes.low.data(),
          key_planes_.high.data(),
          key_planes_.low.data(),
          rows.token.data(),
          exact.top.data(),
          exact.z.data(),
          nullptr,
          int32_t(rows.tokens.size()),
          stream_.tokens,
          heads(),
          heads() / stream_.shape.blocks,
          columns,
          0,
          stream_.rule.scale,
          stream_.rule.softcap,
          stream_.window};
}

std::vector<std::vector<double>> DeviceHead::prompt_sums(const std::vector<int32_t>& from, bool maxima) {
  const int32_t first = from.front();  // ascending
  std::vector<int32_t> tokens(size_t(stream_.prompt - first));
  std::iota(tokens.begin(), tokens.end(), first);
  const Rows rows = load_rows(std::move(tokens));
  const Exact exact = find_normalisers(rows);
  ColumnArgs args = column_args(rows, exact, stream_.prompt);
  const size_t columns = size_t(stream_.prompt), cells = size_t(heads() + 1) * columns;
  const DeviceArray<double> sums(runtime_, from.size() * cells);
  for (size_t i = 0; i < from.size(); ++i) {
    args.first_row = from[i];
    args.sums = sums.data() + i * cells;
    runtime_.columns(args, width_, grade_, false);
    args.sums += size_t(heads()) * columns;
    if (maxima) runtime_.columns(args, width_, grade_, true);
  }
  std::vector<std::vector<double>> all(from.size(), std::vector<double>(cells, 0.0));
  for (size_t i = 0; i < from.size(); ++i)
    sums.download(std::span(all[i]).first(maxima ? cells : cells - columns), i * cells);
  runtime_.wait();
  return all;
}

std::vector<double> DeviceHead::future_sums(const std::vector<int32_t>& tokens) {
  std::vector<double> all(size_t(heads()) * size_t(stream_.tokens), 0.0);
  if (tokens.empty()) return all;
  const Rows rows = load_rows(tokens);
  const Exact exact = find_normalisers(rows);
  const DeviceArray<double> sums(runtime_, all.size());
  ColumnArgs args = column_args(rows, exact, stream_.tokens);
  args.sums = sums.data();
  runtime_.columns(args, width_, grade_, false);
  sums.download(all);
  runtime_.wait();
  return all;
}

bool DeviceHead::fits(const ScoreRule& rule, int32_t heads_of_cache) const {
  const int32_t budget = std::min(rule.budget, stream_.tokens);
  return score_chain_shared_bytes(width_, grade_, heads_of_cache, budget, true) <=
         runtime_.most_shared_bytes();
}

std::vector<Departures> DeviceHead::departures(const std::vector<ScoredCache>& caches) {
  std::vector<int32_t> tokens(size_t(stream_.tokens - stream_.prompt));
  std::iota(tokens.begin(), tokens.end(), stream_.prompt);
  const Rows rows = load_rows(std::move(tokens));
  std::vector<ChainMemory> memory;
  std::vector<ScoreChain> chains;
  size_t shared = 0;
  for (const ScoredCache& cache : caches) {
    memory.push_back(make_chain(cache, rows, chains));
    shared = std::max(shared, score_chain_shared_bytes(width_, grade_, cache.heads, cache.rule.budget,
                                                       memory.back().scratch.size() > 0));
  }
  const DeviceArray<ScoreChain> on_device(runtime_, std::span<const ScoreChain>(chains));
  runtime_.score_chains(on_device.data(), int64_t(chains.size()), shared, width_, grade_);
  std::vector<Departures> all(caches.size());
  std::vector<ScoreChainEnd> ends(caches.size());
  for (size_t i = 0; i < caches.size(); ++i) {
    all[i].victims.resize(rows.tokens.size());
    memory[i].victims.download(all[i].victims);
    memory[i].end.download(std::span(&ends[i], 1));
  }
  runtime_.wait();
  for (size_t i = 0; i < caches.size(); ++i) all[i].failure = failure_of(ends[i]);
  return all;
}

// Adds the chain of a cache to `chains`.
auto DeviceHead::make_chain(const ScoredCache& cache, const Rows& rows, std::vector<ScoreChain>& chains)
    -> ChainMemory {
  const size_t budget = size_t(cache.rule.budget), steps = rows.tokens.size();
  ChainMemory m{DeviceArray<int32_t>(runtime_, budget),
                DeviceArray<double>(runtime_, budget),
                DeviceArray<int32_t>(runtime_, steps),
                DeviceArray<ScoreChainEnd>(runtime_, 1),
                {}};
  m.held.upload(cache.tokens);
  m.scores.upload(cache.scores);
  if (score_chain_shared_bytes(width_, grade_, cache.heads, cache.rule.budget, false) >
      runtime_.most_shared_bytes())
    m.scratch = DeviceArray<float>(runtime_, score_chain_scratch_floats(cache.heads, cache.rule.budget));
  const int32_t block = stream_.shape.block_of(cache.first_head), group = heads() / stream_.shape.blocks;
  const size_t first_row = size_t(cache.first_head) * steps * size_t(width_),
               first_key = size_t(block) * size_t(stream_.tokens) * size_t(width_);
  const auto from = [](const DeviceArray<uint16_t>& plane, size_t at) {
    return plane.data() == nullptr ? nullptr : plane.data() + at;
  };
  ScoreChain c{};
  c.q_high = from(rows.planes.high, first_row), c.q_low = from(rows.planes.low, first_row);
  c.k_high = from(key_planes_.high, first_key), c.k_low = from(key_planes_.low, first_key);
  c.sink_logits = sink_logits_.data() == nullptr ? nullptr : sink_logits_.data() + cache.first_head;
  c.held = m.held.data(), c.scores = m.scores.data(), c.scratch = m.scratch.data();
  c.victims = m.victims.data(), c.end = m.end.data();
  c.carry = cache.rule.carry, c.share = cache.share;
  c.sinks = cache.rule.protect.sinks, c.recent = cache.rule.protect.recent;
  c.budget = cache.rule.budget, c.count = int32_t(cache.tokens.size());
  c.first = stream_.prompt, c.last = stream_.tokens;
  c.first_row = stream_.prompt, c.rows = int32_t(steps);
  c.tokens = stream_.tokens, c.heads = cache.heads, c.group = std::min(group, cache.heads);
  c.scale = stream_.rule.scale, c.softcap = stream_.rule.softcap;
  chains.push_back(c);
  return m;
}

}  // namespace kvreplay
