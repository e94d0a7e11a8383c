#include "replay/decision.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/errors.hpp"
#include "caches/cell_setup.hpp"
#include "measures/sums.hpp"

namespace kvreplay {
namespace {

constexpr double kTinyShare = 1e-12;  // fraction of max ||v||; a row with a smaller output is counted, but not divided
                                      // by

template <class Real>
int32_t group_of(const HeadStream<Real>& stream) {
  return stream.shape.heads / stream.shape.blocks;
}

// Lists of one of the caches that share a file's lists.
GivenLists lists_of(const KeptLists& all, int32_t cache, int32_t caches) {
  const int32_t count = all.count() / caches;
  const auto is_zero = [](double w) { return w == 0; };
  const bool split =
      std::any_of(all.num.begin(), all.num.end(), is_zero) || std::any_of(all.den.begin(), all.den.end(), is_zero);
  const auto weights = [](const std::vector<double>& w) { return w.empty() ? nullptr : w.data(); };
  return {all.tokens.data(), weights(all.num), weights(all.den), all.off.data() + cache * count, count, split};
}

// Wrong lists fail the cell alone.
template <class Real>
void read_lists(Decision<Real>& d, const HeadStream<Real>& stream, int32_t caches, int32_t budget) {
  const Cell& cell = d.cell();
  const KeptScope scope{cell.place, cell.extent, stream.window, caches, budget};
  try {
    d.lists = read_kept_lists(cell.variant->kept, scope);
    const bool same = cell.variant->digests.given.empty() || digest_of(d.lists) == cell.variant->digests.given;
    if (!same) throw ConfigError(cell.variant->kept + ": has changed since the run was planned: run again");
  } catch (const ConfigError& e) {
    d.failure = e.what();
    d.lists = {};
  }
}

template <class Real>
WorkingSetShape working_set_shape(const Decision<Real>& d, size_t number, const HeadStream<Real>& stream) {
  const Cell& cell = *d.cells[number];
  const auto is_its_own = [&](const auto& cache) { return d.is_replayed_by(number, *cache); };
  return {.tokens = stream.tokens,
          .prompt = stream.prompt,
          .caches = int32_t(std::count_if(d.caches.begin(), d.caches.end(), is_its_own)),
          .blocks = d.caches.front()->cache().shape().blocks,
          .chooses = cell.variant->values.traits().chooses,
          .own_index = cell.method().info.own_index,
          .evicts_first = cell.options().order == Order::evict_then_attend,
          .stored_bytes = stream.stored_bytes,
          .row_floats = stream.shape.dim + stream.shape.stored_v_dim()};
}

}  // namespace

namespace {

// Whether the share of the needles that a cache holds after the prompt is asked for.
bool measures_needles(const RunOptions& options) {
  return options.needles.any() && options.wanted.has(Work::after_prompt);
}

}  // namespace

template <class Real>
Decision<Real> make_decision(const std::vector<const Cell*>& cells, const HeadStream<Real>& stream,
                             const RunOptions& options, const std::vector<uint8_t>& scored, RowCodings<Real>& codings,
                             int64_t more_rows) {
  Decision<Real> d;
  d.cells = cells;
  const Cell& cell = d.cell();
  CacheSetup setup = cell_setup(cell, stream);
  if (const int32_t ahead = setup.method.needs().rows_ahead; ahead > 0) d.first_measured = stream.prompt + ahead;
  const int64_t rows = std::count(scored.begin() + d.first_measured, scored.end(), uint8_t{1}) + more_rows;
  const MeasureShape shape{group_of(stream), rows, options.wanted, cell.variant->values.heads_differ(cell.options()),
                           options.working_set.recall_k};
  for (size_t i = 0; i < cells.size(); ++i)
    d.errors.emplace_back(shape, kTinyShare * stream.max_value_norm, options.save);
  d.cache_for_each_kv_head = has_cache_for_each_kv_head(cell);
  const int32_t caches = has_cache_for_each_query_head(cell) ? stream.shape.heads
                         : d.cache_for_each_kv_head          ? stream.shape.blocks
                                                             : 1;
  // An audit reads only the cache's own copy.
  const auto rows_of_format = codings.of(cell, setup.options.row_format, stream, !options.audit);
  setup.coding = rows_of_format.coding;
  inject(cell, cell.place.kv_head, setup, d.uniforms);
  if (!cell.method().lists_in.empty()) read_lists(d, stream, caches, setup.method.context().budget.tokens);
  for (int32_t h = 0; h < caches; ++h) {
    setup.given = cell.common_cuts ? given_lists(*cell.common_cuts) : lists_of(d.lists, h, caches);
    setup.first_head = h;
    if (d.cache_for_each_kv_head) {
      setup.first_head = h * group_of(stream), setup.rng.kv_head = uint32_t(h);
      inject(cell, h, setup, d.uniforms);
    }
    d.resident.push_back(0);
    d.caches.push_back(std::make_unique<CacheReplay<Real>>(
        setup, stream,
        CacheWatch{options.audit, options.save.kept, options.wanted.has(Work::ages),
                   options.save.consensus || measures_needles(options) ||
                       options.working_set.tier.policy == TierOptions::Policy::method},
        rows_of_format.tokens));
  }
  for (size_t i = 0; i < cells.size(); ++i)
    d.sets.emplace_back(working_set_shape(d, i, stream), options.working_set.tier);
  return d;
}

namespace {

template <class Real>
void keep_lists(const Decision<Real>& d, size_t number, CellResult& result) {
  for (const auto& cache : d.caches) {
    if (!d.is_replayed_by(number, *cache)) continue;
    const ResidentLists& lists = cache->account.lists();
    result.kept.append(lists.kept);
    result.num.insert(result.num.end(), lists.num.begin(), lists.num.end());
    result.den.insert(result.den.end(), lists.den.begin(), lists.den.end());
    result.attends = result.attends || lists.reading.attends;
    result.partial = result.partial || lists.reading.partial;
    const auto same = [&](const TokenLists& s) { return s == lists.attended.front(); };
    const bool shared = std::all_of(lists.attended.begin(), lists.attended.end(), same);
    const size_t series = shared ? std::min<size_t>(1, lists.attended.size()) : lists.attended.size();
    for (size_t h = 0; h < series; ++h) result.attended.append(lists.attended[h]);
  }
}

// The tokens of spans, which may overlap, ascending.
std::vector<int32_t> marked_tokens(const std::vector<TokenSpan>& spans) {
  std::vector<int32_t> tokens;
  for (const TokenSpan& span : spans)
    for (int32_t token = span.begin; token < span.end; ++token) tokens.push_back(token);
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

// Mean over the cell's caches of the share of the marked tokens that each held after the prompt.
template <class Real>
std::optional<double> share_of_needles(const Decision<Real>& d, size_t number, const HeadStream<Real>& stream,
                                       const RunOptions& options) {
  const std::vector<int32_t> marked = marked_tokens(options.needles.spans(stream.prompt, stream.needles));
  if (marked.empty()) return std::nullopt;
  Sums shares;
  for (const auto& cache : d.caches) {
    if (!d.is_replayed_by(number, *cache)) continue;
    const std::vector<int32_t>& held = cache->account.after_prompt();
    const auto is_held = [&](int32_t token) { return std::binary_search(held.begin(), held.end(), token); };
    shares.add(double(std::count_if(marked.begin(), marked.end(), is_held)) / double(marked.size()));
  }
  return shares.mean();
}

template <class Real>
void list_after_prompt(const Decision<Real>& d, size_t number, const HeadStream<Real>& stream,
                       const RunOptions& options, CellResult& result) {
  result.prompt = stream.prompt;
  result.needle_tokens = marked_tokens(options.needles.spans(stream.prompt, stream.needles));
  for (const auto& cache : d.caches) {
    if (!d.is_replayed_by(number, *cache)) continue;
    const std::vector<int32_t>& tokens = cache->account.after_prompt();
    result.after_prompt.flat.insert(result.after_prompt.flat.end(), tokens.begin(), tokens.end());
    result.after_prompt.close();
  }
}

template <class Real>
PageLedger shared_pages(const Decision<Real>& d) {
  std::vector<const PageTable*> tables;
  for (const auto& cache : d.caches) tables.push_back(&cache->account.page_table());
  return PageTable::shared(tables);
}

int64_t bytes_of_pages(const Ledger& ledger, int64_t pages) { return std::llround(double(pages) * ledger.page_bytes); }

// One table of pages for all kv heads of the layer: each head is charged the rows of all its resident pages.
template <class Real>
void share_page_table(Decision<Real>& d) {
  const PageLedger all = shared_pages(d);
  for (const auto& cache : d.caches) {
    Ledger& ledger = cache->account.ledger();
    const PageLedger own = std::exchange(ledger.pages, all);
    const auto bytes = [&](int64_t pages) { return bytes_of_pages(ledger, pages); };
    ledger.bytes_sum += bytes(all.resident_sum - own.resident_sum);
    ledger.final_bytes += bytes(all.last - own.last);
    ledger.prompt_bytes += bytes(all.first - own.first);
    ledger.peak_bytes = std::max<int64_t>(ledger.peak_bytes, bytes(all.attended_peak));
  }
}

// A method's query statistics are constants of the model, which no cache stores. They count 4 bytes a number.
template <class Real>
void add_calibration_bytes(const Decision<Real>& d, const HeadStream<Real>& stream,
                           std::map<std::string, double>& extras) {
  const CacheReplay<Real>& cache = *d.caches.front();
  const bool offline = cache.method().calibration().is_offline();
  const StatisticsNeeds needs = cache.prompt.needs().known, asks = offline ? needs : needs.of_prompt();
  const int64_t of_rows = stream.shape.blocks * model_numbers(row_format_at(cache.method(), cache.options()),
                                                              stream.shape.dim, stream.shape.stored_v_dim());
  if (!asks.any() && of_rows == 0) return;
  const size_t heads = size_t(stream.shape.heads), dim = size_t(stream.shape.dim);
  size_t numbers = size_t(of_rows);
  if (asks.means) numbers += heads * (dim + stream.inv_freq.size());
  if (asks.directions) numbers += d.caches.size() * dim;
  if (asks.channels) numbers += heads * dim;
  if (asks.moments()) numbers += heads * (dim + dim * dim);
  extras["calibration_bytes"] = 4.0 * double(numbers);
  if (offline) extras["offline"] = 1;
}

}  // namespace

namespace {

template <class Real>
std::vector<const Ledger*> ledgers_of(const Decision<Real>& d, size_t number) {
  std::vector<const Ledger*> ledgers;
  for (const auto& cache : d.caches)
    if (d.is_replayed_by(number, *cache)) ledgers.push_back(&cache->account.ledger());
  return ledgers;
}

// Query heads that choose what they read share the full cache, unless their method has evicted tokens of its own.
bool share_full_cache(const Method& method, const std::vector<const Ledger*>& ledgers) {
  const auto evicted = [](const Ledger* ledger) { return ledger->evictions > 0; };
  const bool evicts = method.hooks.has(Hook::evict) && std::any_of(ledgers.begin(), ledgers.end(), evicted);
  return method.info.reads_full_cache && !evicts;
}

template <class Real>
CellSizes sizes_to_measure(const Decision<Real>& d, size_t number, const HeadStream<Real>& stream, bool shared) {
  return {stream.shape.dim + stream.shape.stored_v_dim(), stream.stored_bytes,
          exact_cache_tokens(stream.tokens, stream.prompt, stream.window), shared,
          shared && d.cells[number]->method().info.own_index};
}

// Sizes and lists of a cell after one text, or one branch.
template <class Real>
CellResult sizes_of(Decision<Real>& d, size_t number, const HeadStream<Real>& stream, const RunOptions& options) {
  CellResult result;
  const Cell& cell = *d.cells[number];
  const std::vector<const Ledger*> ledgers = ledgers_of(d, number);
  const bool shared = share_full_cache(cell.method(), ledgers);
  measure_sizes(ledgers, sizes_to_measure(d, number, stream, shared), result.measures);
  add_calibration_bytes(d, stream, result.measures.extras);
  if (measures_needles(options)) result.measures["needle_kept"] = share_of_needles(d, number, stream, options);
  if (cell.budget.share) result.measures.extras["allocated_tokens"] = *cell.budget.share;
  result.measures.extras.insert(cell.allocator_says.begin(), cell.allocator_says.end());
  result.double_precision = sizeof(Real) == sizeof(double);
  result.on_cpu = !d.on_device;
  result.oneshot = cell.options().phase == Phase::oneshot && cell.variant->later == nullptr;
  // No list of a later step records what was coded while the prompt streamed in.
  result.partial = d.streams_prompt() && waits(d.caches.front()->options().row_format);
  if (options.save.kept) keep_lists(d, number, result);
  if (options.save.consensus) list_after_prompt(d, number, stream, options, result);
  return result;
}

// The model of a machine, if one is described. Each row pretends that all caches of the model are like its own.
template <class Real>
void model_machine(const Decision<Real>& d, size_t number, const HeadStream<Real>& stream,
                   const WorkingSetOptions& options, Measured& to) {
  const Cell& cell = *d.cells[number];
  const std::vector<const Ledger*> ledgers = ledgers_of(d, number);
  const bool shared = share_full_cache(cell.method(), ledgers);
  int64_t held = 0;
  for (const Ledger* ledger : ledgers) held = shared ? std::max(held, ledger->final_rows) : held + ledger->final_rows;
  const TierOptions& tier = options.tier;
  const double rows = double(tier.any() && tier.hot > 0 ? tier.hot : held);
  const int64_t of_trace = int64_t(cell.variant->trace->n_layers) * cell.context().kv_heads;
  measure_machine(options.machine, options.machine.caches > 0 ? options.machine.caches : of_trace, rows,
                  double(stream.shape.dim + stream.shape.stored_v_dim()) * stream.stored_bytes, to);
}

template <class Real>
BranchResult of_branch(Decision<Real>& d, const HeadStream<Real>& stream, CellResult result) {
  return branch_result(stream.branch, std::move(result), stream.tokens - stream.prompt + 1,
                       d.caches.front()->account.ledger().attended_rows);
}

}  // namespace

template <class Real>
double bytes_held(const Decision<Real>& d, size_t number, const HeadStream<Real>& stream) {
  const std::vector<const Ledger*> ledgers = ledgers_of(d, number);
  const bool shared = share_full_cache(d.cells[number]->method(), ledgers);
  Measured sizes;
  measure_sizes(ledgers, sizes_to_measure(d, number, stream, shared), sizes);
  double bytes = sizes["final_bytes"].value_or(0);
  if (!d.cache_for_each_kv_head) return bytes;
  const PageLedger all = shared_pages(d);
  for (const auto& cache : d.caches)
    if (d.is_replayed_by(number, *cache))
      bytes += double(bytes_of_pages(cache->account.ledger(), all.last - cache->account.page_table().ledger().last));
  return bytes;
}

template <class Real>
void close(Decision<Real>& d) {
  for (const auto& cache : d.caches) cache->account.take_report();
  if (d.cache_for_each_kv_head) share_page_table(d);
}

template <class Real>
CellResult result_of(Decision<Real>& d, size_t number, const HeadStream<Real>& stream, const RunOptions& options) {
  if (!d.alive()) {
    CellResult failed;
    failed.ok = false, failed.error = d.failure;
    return failed;
  }
  CellResult result = sizes_of(d, number, stream, options);
  if (stream.branch >= 0) {
    d.branches.resize(d.cells.size());
    d.branches[number].push_back(of_branch(d, stream, std::move(result)));
    result = joined(std::move(d.branches[number]));
  }
  d.errors[number].finish(result, d.caches.front()->method().error_bound());
  d.sets[number].finish(result.measures);
  model_machine(d, number, stream, options.working_set, result.measures);
  return result;
}

template <class Real>
void go_on(Decision<Real>& d, Decision<Real>& before, const HeadStream<Real>& stream, const RunOptions& options) {
  if (!before.alive()) d.fail(before.failure);
  if (!d.alive()) return;
  d.branches = std::move(before.branches);
  d.branches.resize(d.cells.size());
  for (size_t i = 0; i < d.cells.size(); ++i)
    d.branches[i].push_back(of_branch(before, stream, sizes_of(before, i, stream, options)));
  d.errors = std::move(before.errors);
  for (size_t i = 0; i < d.sets.size(); ++i) d.sets[i].go_on(before.sets[i]);
}

template <class Real>
void hold_residents(Decision<Real>& d) {
  for (size_t i = 0; i < d.sets.size(); ++i) {
    if (!d.sets[i].needs_residents()) continue;
    std::vector<int32_t> tokens;
    for (const auto& cache : d.caches)
      if (d.is_replayed_by(i, *cache)) {
        const std::vector<int32_t>& own = cache->account.after_prompt();
        tokens.insert(tokens.end(), own.begin(), own.end());
      }
    d.sets[i].hold(tokens);
  }
}

template <class Real>
void open_segment(Decision<Real>& d, const Turns::Segment& segment) {
  if (d.segment == segment.begin) return;
  d.segment = segment.begin;
  for (size_t i = 0; i < d.cells.size(); ++i) {
    Sums resident;
    for (size_t c = 0; c < d.caches.size(); ++c)
      if (d.is_replayed_by(i, *d.caches[c])) resident.add(d.resident[c]);
    d.errors[i].open_segment({segment.number, segment.name, segment.begin, resident.mean().value_or(0)});
  }
}

template struct Decision<float>;
template struct Decision<double>;
template Decision<float> make_decision(const std::vector<const Cell*>&, const HeadStream<float>&, const RunOptions&,
                                       const std::vector<uint8_t>&, RowCodings<float>&, int64_t);
template Decision<double> make_decision(const std::vector<const Cell*>&, const HeadStream<double>&, const RunOptions&,
                                        const std::vector<uint8_t>&, RowCodings<double>&, int64_t);
template CellResult result_of(Decision<float>&, size_t, const HeadStream<float>&, const RunOptions&);
template CellResult result_of(Decision<double>&, size_t, const HeadStream<double>&, const RunOptions&);
template void hold_residents(Decision<float>&);
template void hold_residents(Decision<double>&);
template double bytes_held(const Decision<float>&, size_t, const HeadStream<float>&);
template double bytes_held(const Decision<double>&, size_t, const HeadStream<double>&);
template void close(Decision<float>&);
template void close(Decision<double>&);
template void go_on(Decision<float>&, Decision<float>&, const HeadStream<float>&, const RunOptions&);
template void go_on(Decision<double>&, Decision<double>&, const HeadStream<double>&, const RunOptions&);
template void open_segment(Decision<float>&, const Turns::Segment&);
template void open_segment(Decision<double>&, const Turns::Segment&);

}  // namespace kvreplay
