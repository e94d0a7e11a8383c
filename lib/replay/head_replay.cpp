#include "replay/head_replay.hpp"

#include <algorithm>
#include <chrono>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "exact/oracle_needs.hpp"
#include "replay/cell_account.hpp"
#include "trace/uniforms.hpp"

namespace kvreplay {
namespace {

// Of one of the caches that share a file's lists.
GivenLists lists_of(const KeptLists& all, int32_t cache, int32_t caches) {
  const int32_t count = all.count() / caches;
  const auto is_zero = [](double w) { return w == 0; };
  const bool split = std::any_of(all.num.begin(), all.num.end(), is_zero) ||
                     std::any_of(all.den.begin(), all.den.end(), is_zero);
  const auto weights = [](const std::vector<double>& w) { return w.empty() ? nullptr : w.data(); };
  return {
      all.tokens.data(), weights(all.num), weights(all.den), all.off.data() + cache * count, count, split};
}

constexpr double kTinyShare = 1e-12;  // of max ||v||: rows with a smaller output are counted, not divided by

}  // namespace

template <class Real>
HeadReplay<Real>::HeadReplay(const HeadStream<Real>& stream, const RunOptions& options)
    : stream_(stream),
      exact_(stream),
      sparse_(exact_),
      options_(options),
      every_row_(options.every_row),
      watch_{options.audit,
             options.save,
             false,
             options.wanted.set_error,
             options.wanted.prefix_error,
             options.wanted.ages,
             options.needles.spans(stream.prompt)},
      norms_(stream, options.wanted.spectral),
      device_caches_(stream),
      fixed_(stream),
      sliding_(stream) {
  if constexpr (std::is_same_v<Real, float>)
    if (options.device && !options.audit) device_ = options.device(stream);
  scored_ = scored_tokens();
  scored_rows_ = std::count(scored_.begin(), scored_.end(), uint8_t{1});
  solo_ = stream.tokens > options.strips_up_to;
}

template <class Real>
double HeadReplay<Real>::tiny_norm() const {
  return kTinyShare * stream_.max_value_norm;
}

// The selection is taken from the decode rows that the trace has a query for.
template <class Real>
std::vector<uint8_t> HeadReplay<Real>::scored_tokens() const {
  std::vector<size_t> rows;
  for (size_t t = size_t(stream_.prompt); t < size_t(stream_.tokens); ++t)
    if (stream_.query_row[t] >= 0) rows.push_back(t);
  using Kind = QuerySelection::Kind;
  const QuerySelection& q = options_.queries;
  const size_t count = size_t(q.count), step = q.kind == Kind::stride ? count : 1;
  const size_t first = q.kind == Kind::last && rows.size() > count ? rows.size() - count : 0;
  std::vector<uint8_t> scored(size_t(stream_.tokens), 0);
  for (size_t i = first; i < rows.size(); i += step) scored[rows[i]] = 1;
  return scored;
}

template <class Real>
void HeadReplay<Real>::add(const std::vector<const Cell*>& cells) {
  const Cell& cell = *cells.front();
  Replayed r;
  r.cells = cells;
  for (size_t i = 0; i < cells.size(); ++i)
    r.errors.push_back(std::make_unique<Accumulator>(group(), scored_rows_, tiny_norm(), options_.wanted));
  LaneOrder order{cell.params, cell.options, cell.context(), {}};
  // What looks only at keys and values decides the same for every query head: one cache (C9).
  const bool by_query = cell.options.gqa_level == GqaLevel::query && cell.method->looks_at_queries;
  if (cell.options.gqa_level == GqaLevel::query && !by_query) order.options.gqa_level = GqaLevel::kv;
  order.context.shape = stream_.shape;
  order.context.window = stream_.window;
  if (by_query) order.context.shape.heads = 1;
  // A layer that decides as one draws the same numbers whichever of its kv heads are selected.
  const uint32_t kv_head = stream_.shape.blocks > 1 ? 0 : uint32_t(cell.kv_head);
  order.rng = {cell.seed.value_or(0), cell.prompt_rank, uint32_t(cell.layer), kv_head, {}};
  const OracleNeeds asks = cell.method->oracle_needs(cell.params);
  if (asks.median_key_distance) order.context.median_key_distance = median_key_distance(stream_, order.rng);
  if (asks.largest_query_norm) order.context.largest_query_norm = largest_query_norm(stream_);
  if (!cell.uniforms.empty()) inject(r, order);
  const int32_t caches = by_query ? stream_.shape.heads : 1;
  if (!cell.method->lists_in.empty()) read_lists(r, order, caches);
  for (int32_t h = 0; h < caches; ++h) {
    order.given = lists_of(r.lists, h, caches);
    if constexpr (sizeof(Real) == sizeof(double)) r.lanes.push_back(cell.method->lane_double(order));
    else r.lanes.push_back(cell.method->lane_single(order));
    LaneWatch watch = watch_;
    watch.prompt_streams = cell.prompt_streams;
    r.lanes.back()->bind(stream_, h, watch);
    every_row_ = every_row_ || r.lanes.back()->observes();
  }
  prefixes_ = prefixes_ || (options_.wanted.prefix_error && cell.options.phase == Phase::oneshot);
  decisions_.push_back(std::move(r));
}

template <class Real>
void HeadReplay<Real>::inject(Replayed& r, LaneOrder& order) {
  const Cell& cell = *r.cells.front();
  const std::vector<RngArray> arrays = cell.method->rng_arrays(cell.params, order.context);
  for (size_t i = 0; i < arrays.size() && i < size_t(Rng::kArrays); ++i) {
    const RngArray& a = arrays[i];
    InjectedUniforms u = read_uniforms(cell.uniforms, cell.prompt, cell.layer, cell.kv_head,
                                       {split_words(a.names), a.rounds, a.positions, a.slots});
    r.uniforms.push_back(std::move(u.values));
    order.rng.injected[i] = {r.uniforms.back().data(), a.structure, u.positions, u.slots};
  }
}

// What is wrong with them fails the cell alone.
template <class Real>
void HeadReplay<Real>::read_lists(Replayed& r, const LaneOrder& order, int32_t caches) const {
  const Cell& cell = *r.cells.front();
  KeptScope scope{cell.prompt,   cell.layer,     cell.kv_head, cell.n_prefill,
                  cell.n_tokens, stream_.window, caches,       order.context.budget};
  try {
    r.lists = read_kept_lists(cell.kept, scope);
    const bool same = cell.kept_digest.empty() || digest_of(r.lists) == cell.kept_digest;
    if (!same) throw ConfigError(cell.kept + ": has changed since the run was planned: run again");
  } catch (const ConfigError& e) {
    r.failure = e.what();
    r.lists = {};
  }
}

// Tiles are the same whatever is replayed on them, so that a resumed run computes what a whole one does.
template <class Real>
void HeadReplay<Real>::next_tile(int32_t begin, int32_t end, Tile<Real>& tile) const {
  tile.rows.clear();
  tile.scored.clear();
  tile.begin = begin, tile.window = stream_.window;
  tile.end = std::min(end, begin + tile_rows(stream_.shape.heads));
  for (int32_t t = begin; t < tile.end; ++t) {
    if (!has_strip(t)) continue;
    tile.rows.push_back(t);
    tile.scored.push_back(scored_[size_t(t)]);
  }
}

// Of this and the following tiles of the prompt, or of what comes after it.
template <class Real>
std::vector<int32_t> HeadReplay<Real>::rows_from(int32_t t) const {
  const int32_t end = t < stream_.prompt ? stream_.prompt : stream_.tokens;
  std::vector<int32_t> rows;
  for (; t < end && int32_t(rows.size()) < tile_rows(stream_.shape.heads); ++t)
    if (has_strip(t)) rows.push_back(t);
  return rows;
}

template <class Real>
void HeadReplay<Real>::fill_tile(Tile<Real>& tile) {
  const bool dense = tile.end - tile.begin == int32_t(tile.rows.size());
  if (dense) exact_.exact_pass(tile);
  else if (!tile.rows.empty()) sparse_.fill(tile, [&](int32_t t) { return rows_from(t); });
  stream_.hold_queries(tile.begin, tile.end - 1);
  if (tile.rows.empty()) return;
  if (prefixes_ && tile.divided && tile.any_scored()) exact_.prefix_pass(tile);
  const size_t rows = tile.rows.size(), blocks = size_t(stream_.shape.blocks);
  for (auto* norms : {&tile.v_frobenius, &tile.v_operator, &tile.v_largest})
    norms->assign(rows * blocks, 0.0);
  for (size_t r = 0; r < rows; ++r) {
    if (tile.scored[r] == 0) continue;
    const std::span<const ValueNorm> norms = norms_.at(tile.rows[r]);
    for (size_t b = 0; b < blocks; ++b) {
      tile.v_frobenius[b * rows + r] = norms[b].frobenius;
      tile.v_operator[b * rows + r] = norms[b].spectral;
      tile.v_largest[b * rows + r] = norms[b].largest;
    }
  }
  if (options_.wanted.recalls) rank(tile);
}

template <class Real>
void HeadReplay<Real>::rank(Tile<Real>& tile) {
  int32_t depth = 0, depth_of_heads = 0;
  for (const Replayed& r : decisions_)
    for (const auto& lane : r.lanes) {
      if (!r.alive() || r.on_device) continue;
      int32_t& of = lane->heads_differ() ? depth_of_heads : depth;
      of = std::max(of, lane->attended_bound(tile.end - tile.begin));
    }
  if (depth > 0) rank_rows(tile, depth, false);
  if (depth_of_heads > 0) rank_rows(tile, depth_of_heads, true);
}

// Once the prompt's caches are cut.
template <class Real>
void HeadReplay<Real>::choose_evaluators() {
  for (size_t d = 0; d < decisions_.size(); ++d)
    guarded(decisions_[d], [&] {
      Replayed& r = decisions_[d];
      if (r.chained) return;
      r.on_device = device_takes(r);
      if (r.on_device) return give_to_device(d);
      for (const auto& lane : r.lanes) r.evaluators.push_back(evaluator_of(r, *lane));
    });
  fixed_.build();
}

template <class Real>
auto HeadReplay<Real>::evaluator_of(const Replayed& r, Lane<Real>& lane) -> Evaluator {
  Evaluator e{lane.shortcut(), 0, nullptr};
  using Kind = Shortcut::Kind;
  const CommonOptions& options = r.cells.front()->options;
  if (e.shortcut.kind == Kind::fixed && r.streams_prompt()) e.shortcut = {};
  if (e.shortcut.kind == Kind::fixed)
    e.id = fixed_.add(lane.cache(), lane.first_head(), family_of(r, lane, Kind::fixed));
  if (e.shortcut.kind == Kind::sliding)
    e.id = sliding_.add(lane, family_of(r, lane, Kind::sliding), options.order == Order::evict_then_attend);
  if (e.shortcut.kind == Kind::scores)
    e.slots = std::make_unique<ScoreSlots<Real>>(exact_, lane, e.shortcut.rule,
                                                 options.gqa_aggregate == Aggregate::mean);
  return e;
}

// One method at several budgets.
template <class Real>
size_t HeadReplay<Real>::family_of(const Replayed& r, const Lane<Real>& lane, Shortcut::Kind kind) {
  const Cell& cell = *r.cells.front();
  const FamilyKey key{
      kind, cell.method, cell.instance, cell.seed.value_or(0), lane.first_head(), lane.cache().shape().heads};
  const auto same_kind = [&](const auto& family) { return std::get<0>(family.first) == kind; };
  const size_t next = size_t(std::count_if(families_.begin(), families_.end(), same_kind));
  return families_.emplace(key, next).first->second;
}

// Before any of a family is evaluated.
template <class Real>
void HeadReplay<Real>::step_sliding(const Tile<Real>& tile, Replayed& r) {
  for (const Evaluator& e : r.evaluators)
    if (e.shortcut.kind == Shortcut::Kind::sliding) sliding_.step(e.id, tile.begin, tile.end);
}

template <class Real>
void HeadReplay<Real>::replay_lane(const Tile<Real>& tile, const Replayed& r, size_t l) {
  using Kind = Shortcut::Kind;
  Lane<Real>& lane = *r.lanes[l];
  const Evaluator& e = r.evaluators[l];
  if (e.shortcut.kind == Kind::none) return lane.replay(tile, workspace_, lane_tile_);
  const auto start = std::chrono::steady_clock::now();
  lane_tile_.open(lane.cache().shape().heads, int32_t(tile.rows.size()), stream_.shape.v_dim);
  if (e.shortcut.kind == Kind::fixed) {
    for (int32_t t = tile.begin; t < tile.end; ++t) lane.step_alone(t);
    fixed_.fill(e.id, tile, watch_, lane.heads_differ(), lane.error_bound().spread, lane_tile_);
  }
  if (e.shortcut.kind == Kind::sliding) sliding_.fill(e.id, tile, watch_, lane_tile_);
  if (e.shortcut.kind == Kind::scores) e.slots->replay(tile, watch_, lane_tile_);
  int64_t tokens = 0, rows = 0;
  for (size_t at = 0; at < lane_tile_.measures.size(); ++at)
    if (tile.scored[at % tile.rows.size()] != 0) tokens += lane_tile_.measures[at].attended, ++rows;
  lane.count_attended(tokens, rows,
                      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

template <class Real>
void HeadReplay<Real>::replay_tile(const Tile<Real>& tile, Replayed& r) {
  const bool keep = options_.save.outputs, layer = stream_.shape.blocks > 1;
  for (size_t l = 0; l < r.lanes.size(); ++l) {
    replay_lane(tile, r, l);
    for (size_t c = 0; c < r.cells.size(); ++c) {
      const int32_t head = layer ? r.cells[c]->kv_head * group() : int32_t(l);
      const int32_t count = layer ? group() : lane_tile_.heads;
      r.errors[c]->add(tile, lane_tile_, {layer ? head : 0, head, layer ? 0 : int32_t(l), count}, keep);
    }
  }
}

template <class Real>
void HeadReplay<Real>::run(const Stop& stop, const Report& report) {
  for (Replayed& r : decisions_) {
    r.on_device = r.chained = device_replays(r);
    r.cut = !r.chained && device_cuts(r);
  }
  read_prompts();
  choose_evaluators();
  for (size_t d = 0; d < decisions_.size(); ++d)
    for (const auto& lane : decisions_[d].lanes)
      if (decisions_[d].chained && decisions_[d].streams_prompt()) order_chains(d, *lane, {});
  if (!device_caches_.empty()) replay_on_device();
  if (!chains_.empty()) replay_chains();
  replay_tiles(stop);
  if (stop()) return;
  for (Replayed& r : decisions_)
    for (size_t c = 0; c < r.cells.size(); ++c) report(*r.cells[c], result_of(r, c));
}

// What no device has taken.
template <class Real>
void HeadReplay<Real>::replay_tiles(const Stop& stop) {
  const auto waits = [](const Replayed& r) { return r.alive() && !r.on_device; };
  if (std::none_of(decisions_.begin(), decisions_.end(), waits)) return;
  const auto streams = [&](const Replayed& r) { return r.streams_prompt(); };
  const bool some = std::any_of(decisions_.begin(), decisions_.end(), streams);
  Tile<Real> tile;
  for (int32_t t = some ? 0 : stream_.prompt; t < stream_.tokens;) {
    if (stop()) return;
    const bool prompt = t < stream_.prompt;
    next_tile(t, prompt ? stream_.prompt : stream_.tokens, tile);
    fill_tile(tile);
    const auto each = [&](auto f) {
      for (Replayed& r : decisions_)
        if (!r.on_device && (!prompt || streams(r))) guarded(r, [&] { f(r); });
    };
    each([&](Replayed& r) { step_sliding(tile, r); });
    each([&](Replayed& r) { replay_tile(tile, r); });
    t = tile.end;
  }
}

template <class Real>
CellResult HeadReplay<Real>::result_of(Replayed& r, size_t cell) const {
  CellResult result;
  result.ok = r.alive();
  result.error = r.failure;
  if (!r.alive()) return result;
  std::vector<const LaneLedger*> ledgers;
  for (const auto& lane : r.lanes) ledgers.push_back(&lane->ledger());
  // Query heads that choose what they read from the full cache share it.
  const bool shared = r.cells.front()->method->info.reads_full_cache;
  // The exact cache of a layer with a sliding window holds the window.
  const int32_t full = stream_.window > 0 ? std::min(stream_.tokens, stream_.window) : stream_.tokens;
  account_cell(ledgers, {stream_.shape.dim + stream_.shape.v_dim, stream_.stored_bytes, full, shared},
               result.measures);
  if (const auto& share = r.cells[cell]->allocated) result.measures.extras["allocated_tokens"] = *share;
  r.errors[cell]->finish(result.measures, result, options_.save, r.lanes.front()->error_bound());
  result.double_precision = sizeof(Real) == sizeof(double);
  result.by_cores = !r.on_device;
  result.oneshot = r.cells[cell]->options.phase == Phase::oneshot;
  // Blocks that were coded while the prompt came in are in no list of a later step.
  result.partial = r.streams_prompt() && r.cells[cell]->options.row_format.by_block();
  if (options_.save.kept) keep_lists(r, result);
  return result;
}

template <class Real>
void HeadReplay<Real>::keep_lists(const Replayed& r, CellResult& result) const {
  const auto append = [](TokenLists& to, const TokenLists& from) {
    for (size_t i = 1; i < from.off.size(); ++i) to.off.push_back(int64_t(to.flat.size()) + from.off[i]);
    to.flat.insert(to.flat.end(), from.flat.begin(), from.flat.end());
  };
  for (const auto& lane : r.lanes) {
    const LaneLists& lists = lane->lists();
    append(result.kept, lists.kept);
    result.num.insert(result.num.end(), lists.num.begin(), lists.num.end());
    result.den.insert(result.den.end(), lists.den.begin(), lists.den.end());
    result.attends = result.attends || lists.reading.attends;
    result.partial = result.partial || lists.reading.partial;
    const auto same = [&](const TokenLists& s) {
      return s.flat == lists.attended.front().flat && s.off == lists.attended.front().off;
    };
    const bool shared =
        std::all_of(lists.attended.begin(), lists.attended.end(), same);  // heads that read the same tokens
    for (size_t h = 0; h < (shared ? std::min<size_t>(1, lists.attended.size()) : lists.attended.size()); ++h)
      append(result.attended, lists.attended[h]);
  }
}

template class HeadReplay<float>;
template class HeadReplay<double>;

}  // namespace kvreplay
