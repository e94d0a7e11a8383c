#include "replay/head_replay.hpp"

#include <algorithm>

#include "trace/uniforms.hpp"

namespace kvreplay {
namespace {

constexpr double kTinyShare = 1e-12;  // of max ||v||: rows with a smaller output are counted, not divided by

}  // namespace

template <class Real>
HeadReplay<Real>::HeadReplay(const HeadStream<Real>& stream, const RunOptions& options)
    : stream_(stream), options_(options), every_row_(options.every_row), norms_(stream.shape.v_dim) {
  scored_ = scored_tokens();
  scored_rows_ = std::count(scored_.begin(), scored_.end(), uint8_t{1});
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
void HeadReplay<Real>::add(const Cell& cell) {
  Replayed r;
  r.cell = &cell;
  r.errors =
      std::make_unique<Accumulator>(stream_.shape.heads, scored_rows_, kTinyShare * stream_.max_value_norm);
  LaneOrder order{cell.params, cell.axes, {}, {}};
  // What looks only at keys and values decides the same for every query head: one cache (C9).
  const bool by_query = cell.axes.gqa_level == GqaLevel::query && cell.method->looks_at_queries;
  if (!by_query) order.axes.gqa_level = GqaLevel::kv;
  HeadShape shape = stream_.shape;
  if (by_query) shape.heads = 1;
  order.scene = {cell.budget.value_or(0), stream_.prompt, stream_.tokens, shape, cell.layer,
                 cell.n_layers,           cell.axes.phase};
  order.draws = {cell.seed.value_or(0), cell.prompt_rank, uint32_t(cell.layer), uint32_t(cell.kv_head)};
  if (!cell.uniforms.empty()) {
    InjectedUniforms u = read_uniforms(cell.uniforms, cell.prompt, cell.layer, cell.kv_head,
                                       cell.method->draws_needed(cell.params, order.scene));
    r.uniforms = std::move(u.values);
    order.draws.values = r.uniforms.data();
    order.draws.positions = u.positions;
  }
  for (int32_t h = 0; h < (by_query ? stream_.shape.heads : 1); ++h) {
    if constexpr (sizeof(Real) == sizeof(double)) r.lanes.push_back(cell.method->lane_double(order));
    else r.lanes.push_back(cell.method->lane_single(order));
    r.lanes.back()->bind(stream_, h, options_.audit, options_.save);
    every_row_ = every_row_ || r.lanes.back()->observes();
  }
  cells_.push_back(std::move(r));
}

// A cell that fails is reported as failed; the others go on.
template <class Real>
template <class F>
void HeadReplay<Real>::guarded(Replayed& r, F f) {
  if (!r.alive()) return;
  try {
    f();
  } catch (const LaneError& e) {
    r.failure = e.what();
  }
}

// Statistics of prompt rows are computed once for all caches that ask for the same rows.
template <class Real>
void HeadReplay<Real>::read_prompts() {
  std::vector<int32_t> firsts;
  for (const Replayed& r : cells_)
    for (const auto& lane : r.lanes) firsts.push_back(lane->needs().column_sums_from);
  std::sort(firsts.begin(), firsts.end());
  firsts.erase(std::unique(firsts.begin(), firsts.end()), firsts.end());
  std::erase(firsts, PromptNeeds::kNoRows);
  const std::vector<std::vector<double>> sums = prompt_column_sums(stream_, firsts);
  const auto sums_from = [&](int32_t first) -> const double* {
    const auto at = std::lower_bound(firsts.begin(), firsts.end(), first);
    return at == firsts.end() || *at != first ? nullptr : sums[size_t(at - firsts.begin())].data();
  };
  for (Replayed& r : cells_)
    guarded(r, [&] {
      for (const auto& lane : r.lanes) lane->read_prompt(sums_from(lane->needs().column_sums_from));
    });
}

// Tiles are the same whatever is replayed on them, so that a resumed run computes what a whole one does.
template <class Real>
Tile<Real> HeadReplay<Real>::next_tile(int32_t begin) const {
  Tile<Real> tile;
  tile.begin = begin;
  tile.end = std::min(stream_.tokens, begin + kTileRows);
  for (int32_t t = begin; t < tile.end; ++t) {
    if (!every_row_ && scored_[size_t(t)] == 0) continue;
    tile.rows.push_back(t);
    tile.scored.push_back(scored_[size_t(t)]);
  }
  return tile;
}

template <class Real>
void HeadReplay<Real>::fill_tile(Tile<Real>& tile) {
  if (tile.rows.empty()) return;
  exact_pass(stream_, tile);
  tile.v_frobenius.assign(tile.rows.size(), 0.0);
  tile.v_operator.assign(tile.rows.size(), 0.0);
  for (size_t r = 0; r < tile.rows.size(); ++r) {
    if (tile.scored[r] == 0) continue;
    for (; norms_up_to_ <= tile.rows[r]; ++norms_up_to_)
      norms_.add(stream_.values.data() + int64_t(norms_up_to_) * stream_.shape.v_dim);
    tile.v_frobenius[r] = norms_.frobenius();
    tile.v_operator[r] = norms_.spectral();
  }
  if (!options_.recalls) return;
  int32_t depth = 0, depth_of_heads = 0;
  for (const Replayed& r : cells_)
    for (const auto& lane : r.lanes) {
      int32_t& of = lane->heads_differ() ? depth_of_heads : depth;
      of = std::max(of, lane->attended_bound(tile.end - tile.begin));
    }
  if (depth > 0) rank_rows(tile, depth, false);
  if (depth_of_heads > 0) rank_rows(tile, depth_of_heads, true);
}

template <class Real>
void HeadReplay<Real>::replay_tile(const Tile<Real>& tile, Replayed& r) {
  for (size_t l = 0; l < r.lanes.size(); ++l) {
    r.lanes[l]->replay(tile, workspace_, lane_tile_);
    r.errors->add(tile, lane_tile_, int32_t(l), options_.save.outputs);
  }
}

template <class Real>
void HeadReplay<Real>::run(const Stop& stop, const Report& report) {
  if (!options_.prompt_streams) read_prompts();
  for (int32_t t = options_.prompt_streams ? 0 : stream_.prompt; t < stream_.tokens;) {
    if (stop()) return;
    Tile<Real> tile = next_tile(t);
    fill_tile(tile);
    for (Replayed& r : cells_) guarded(r, [&] { replay_tile(tile, r); });
    t = tile.end;
  }
  for (Replayed& r : cells_) report(*r.cell, result_of(r));
}

template <class Real>
CellResult HeadReplay<Real>::result_of(Replayed& r) const {
  CellResult result;
  result.ok = r.alive();
  result.error = r.failure;
  if (!r.alive()) return result;
  account(r, result.measures);
  r.errors->finish(result.measures, result, options_.save);
  result.double_precision = sizeof(Real) == sizeof(double);
  result.oneshot = r.cell->axes.phase == Phase::oneshot;
  if (!options_.save.kept) return result;
  const auto append = [](TokenLists& to, const TokenLists& from) {
    for (size_t i = 1; i < from.off.size(); ++i) to.off.push_back(int64_t(to.flat.size()) + from.off[i]);
    to.flat.insert(to.flat.end(), from.flat.begin(), from.flat.end());
  };
  for (const auto& lane : r.lanes) {
    const LaneLists& lists = lane->lists();
    append(result.kept, lists.kept);
    result.num.insert(result.num.end(), lists.num.begin(), lists.num.end());
    result.den.insert(result.den.end(), lists.den.begin(), lists.den.end());
    const auto same = [&](const TokenLists& s) {
      return s.flat == lists.attended.front().flat && s.off == lists.attended.front().off;
    };
    const bool shared =
        std::all_of(lists.attended.begin(), lists.attended.end(), same);  // heads that read the same tokens
    for (size_t h = 0; h < (shared ? std::min<size_t>(1, lists.attended.size()) : lists.attended.size()); ++h)
      append(result.attended, lists.attended[h]);
  }
  return result;
}

// Sizes per set; bytes summed over the sets of the cell (measures.md, section 3).
template <class Real>
void HeadReplay<Real>::account(Replayed& r, CellMeasures& m) const {
  const int64_t row_bytes = int64_t(stream_.shape.dim + stream_.shape.v_dim) * stream_.stored_bytes;
  double kept = 0;
  for (const auto& lane : r.lanes) {
    const LaneLedger& l = lane->ledger();
    m.peak_kept_tokens = std::max(m.peak_kept_tokens, l.peak_kept);
    m.peak_attended_tokens = std::max(m.peak_attended_tokens, l.peak_attended);
    kept += l.kept_steps > 0 ? double(l.kept_sum) / double(l.kept_steps) : 0.0;
    m.peak_bytes += std::max(l.peak_attended, l.peak_kept) * row_bytes + 4 * l.weight_floats;
    m.aux_bytes += l.peak_aux_bytes;
    m.n_evictions += l.evictions;
    m.select_s += l.select_s;
    m.attend_s += l.attend_s;
  }
  m.mean_kept_tokens = kept / double(r.lanes.size());
  m.total_bytes = m.peak_bytes + m.aux_bytes;
  // The exact cache of a layer with a sliding window holds the window.
  m.full_bytes = (stream_.window > 0 ? std::min(stream_.tokens, stream_.window) : stream_.tokens) * row_bytes;
}

template class HeadReplay<float>;
template class HeadReplay<double>;

}  // namespace kvreplay
