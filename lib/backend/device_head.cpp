#include "backend/device_head.hpp"

#include "backend/kernels_of.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "base/errors.hpp"

namespace kvreplay {
namespace {

constexpr size_t kSumsBytes = size_t{1} << 29;  // of the parts of a portion of rows
constexpr size_t kMostRows = 8192;
constexpr size_t kChainBytes = size_t{2} << 30;          // of chains that are replayed together
constexpr int64_t kProbabilityBytes = int64_t{1} << 28;  // of the rows that are ranked at a time
constexpr double kLn2 = 0.69314718055994530942;

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
      return "the denominator" + at + " is zero or not finite: nothing left to attend to";
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
  const size_t dim = size_t(stream_.shape.dim), count = tokens.size();
  std::vector<float> numbers(size_t(heads()) * count * dim);
  for (size_t r = 0; r < count; ++r) {
    stream_.hold_queries(tokens[r], tokens[r]);
    for (int32_t h = 0; h < heads(); ++h)
      std::copy_n(stream_.query(h, tokens[r]), dim, numbers.data() + (size_t(h) * count + r) * dim);
  }
  Rows rows;
  rows.token = DeviceArray<int32_t>(runtime_, std::span<const int32_t>(tokens));
  rows.numbers = DeviceArray<float>(runtime_, std::span<const float>(numbers));
  rows.planes = pack(rows.numbers, int64_t(heads()) * int64_t(count), stream_.shape.dim);
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

// What a portion's sums and lists may take, in whole tiles. Lists of one tile tell.
size_t DeviceHead::rows_at_once(const std::vector<HeldTokens>& caches, const Asked& asked) const {
  const std::vector<int32_t> some(asked.rows.end() - int64_t(std::min<size_t>(64, asked.rows.size())),
                                  asked.rows.end());
  const KeyLists lists(caches, some, stream_.prompt, heads(), asked.recalls);
  const size_t row_bytes =
      lists.parts() * size_t(heads()) * size_t(width_ + 4) * sizeof(float) + lists.entries() * 16 / 64;
  return std::clamp(kSumsBytes / row_bytes / 64 * 64, size_t{64}, kMostRows);
}

void DeviceHead::evaluate(const std::vector<HeldTokens>& caches, const Asked& asked,
                          const std::function<void(const DeviceRows&)>& take) {
  if (asked.rows.empty()) return;
  const size_t step = rows_at_once(caches, asked);
  for (size_t first = 0; first < asked.rows.size(); first += step) {
    const size_t end = std::min(asked.rows.size(), first + step);
    DeviceRows result;
    result.first = first, result.count = end - first;
    evaluate_rows(caches, asked,
                  load_rows({asked.rows.begin() + int64_t(first), asked.rows.begin() + int64_t(end)}),
                  result);
    take(result);
  }
}

void DeviceHead::evaluate_rows(const std::vector<HeldTokens>& caches, const Asked& asked, Rows rows,
                               DeviceRows& result) {
  const KeyLists lists(caches, rows.tokens, stream_.prompt, heads(), asked.recalls);
  const KeyLists::OnDevice keys = lists.upload(runtime_);
  const Sums sums = make_sums(lists.parts(), result.count, true);
  runtime_.attend(attend_args(rows, keys.parts, sums), width_, grade_, true);
  const Exact exact = make_exact(result.count, true);
  const MergeInput in = merge_input(rows, sums);
  runtime_.run(ExactMergeKernel{in, exact.view(), keys.refs.data(), KeyLists::kExactRefs});

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
  merge(std::move(how), in, exact, result);
  download_exact(exact, result);
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
}

bool DeviceHead::replays(const ChainPrograms& programs, const HeadShape& shape) const {
  return runtime_.has(programs) && ChainRoom::of(shape, kChainThreads).bytes <= runtime_.most_shared_bytes();
}

// As many at a time as there is room for.
std::vector<ChainRecord> DeviceHead::replay(const std::vector<ChainOrder>& orders, const Asked& asked,
                                            const std::function<void(const DeviceRows&)>& take) {
  std::vector<ChainRecord> records;
  for (size_t first = 0; first < orders.size();) {
    size_t bytes = 0, end = first;
    do bytes += DeviceChains::bytes(stream_, orders[end++]);
    while (end < orders.size() && bytes + DeviceChains::bytes(stream_, orders[end]) <= kChainBytes);
    replay_some(std::span(orders).subspan(first, end - first), asked, take, records);
    first = end;
  }
  return records;
}

void DeviceHead::replay_some(std::span<const ChainOrder> orders, const Asked& asked,
                             const std::function<void(const DeviceRows&)>& take,
                             std::vector<ChainRecord>& records) {
  DeviceChains chains(runtime_, stream_, keys_.data(), sink_logits_.data(), orders);
  const bool bits = asked.recalls || std::any_of(orders.begin(), orders.end(),
                                                 [](const ChainOrder& o) { return o.chooses && o.lists; });
  size_t parts = KeyLists::kExactRefs, row_bytes = 0;
  for (const ChainOrder& o : orders)
    parts += size_t(DeviceChains::parts(o)), row_bytes += DeviceChains::row_bytes(stream_, o, bits);
  row_bytes += parts * size_t(heads()) * size_t(width_ + 4) * sizeof(float);
  const size_t step = std::clamp(kSumsBytes / row_bytes / 64 * 64, size_t{64}, kMostRows);
  std::vector<std::vector<TokenLists>> attended(orders.size());
  for (size_t i = 0; i < orders.size(); ++i)
    if (orders[i].chooses && orders[i].lists) attended[i].resize(size_t(orders[i].memory.shape.heads));
  for (size_t first = 0; first < asked.rows.size(); first += step) {
    const size_t end = std::min(asked.rows.size(), first + step);
    DeviceRows result;
    result.first = first, result.count = end - first, result.first_cache = records.size();
    replay_rows(chains, orders, asked,
                load_rows({asked.rows.begin() + int64_t(first), asked.rows.begin() + int64_t(end)}), result);
    for (size_t i = 0; i < orders.size(); ++i)
      if (!attended[i].empty()) chains.list_attended(i, attended[i]);
    take(result);
  }
  const std::vector<int32_t> nobody;
  chains.advance(stream_.tokens, {&nobody, {}, width_, 0, false});
  for (ChainRecord& record : chains.finish()) records.push_back(std::move(record));
  for (size_t i = 0; i < orders.size(); ++i)
    records[records.size() - orders.size() + i].attended = std::move(attended[i]);
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
    PartList set{all.first + all.count, o.set ? 1 : 0, 0};
    for (int32_t i = 0; i < DeviceChains::parts(o); ++i) refs.push_back({part++, 1, 1});
    how.lanes.push_back({all, set, o.prefix, o.first_head, o.memory.shape.heads, 0});
  }
  const Sums sums = make_sums(size_t(part), result.count, true);
  runtime_.attend(attend_args(rows, keys.parts, sums), width_, grade_, true);
  const bool bits = asked.recalls || std::any_of(orders.begin(), orders.end(),
                                                 [](const ChainOrder& o) { return o.chooses && o.lists; });
  chains.advance(rows.tokens.back() + 1, {&rows.tokens, sums.view(), width_, int32_t(lists.parts()), bits});
  const Exact exact = make_exact(result.count, true);
  const MergeInput in = merge_input(rows, sums);
  runtime_.run(ExactMergeKernel{in, exact.view(), keys.refs.data(), KeyLists::kExactRefs});
  const DeviceArray<PartRef> all_refs(runtime_, std::span<const PartRef>(refs));
  how.refs = all_refs.data();
  merge(std::move(how), in, exact, result);
  download_exact(exact, result);
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

// Largest logit and normaliser of every row.
auto DeviceHead::find_normalisers(const Rows& rows) -> Exact {
  const KeyLists lists({}, rows.tokens, stream_.prompt, heads());
  const KeyLists::OnDevice keys = lists.upload(runtime_);
  const Sums sums = make_sums(lists.parts(), rows.tokens.size(), false);
  runtime_.attend(attend_args(rows, keys.parts, sums), width_, grade_, false);
  Exact exact = make_exact(rows.tokens.size(), false);
  runtime_.run(
      ExactMergeKernel{merge_input(rows, sums), exact.view(), keys.refs.data(), KeyLists::kExactRefs});
  return exact;
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
