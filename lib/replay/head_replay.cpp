#include "replay/head_replay.hpp"

#include <algorithm>
#include <numeric>

#include "base/stopwatch.hpp"

namespace kvreplay {

template <class Real>
HeadReplay<Real>::HeadReplay(const HeadStream<Real>& stream, const RunOptions& options, int64_t more_rows)
    : stream_(stream),
      options_(options),
      more_rows_(more_rows),
      exact_(stream),
      sparse_(exact_),
      scored_(scored_tokens(stream, options.queries)),
      every_row_(options.every_row),
      without_strips_(stream.tokens > options.strips_up_to),
      norms_(stream, options.wanted.has(Work::spectral)),
      outputs_(stream),
      shared_{exact_,
              {options.wanted.has(Work::set_error), options.wanted.has(Work::prefix_error),
               options.wanted.has(Work::details) || options.save.projections,
               options.needles.spans(stream.prompt, stream.needles),
               options.wanted.has(Work::recalls) ? options.working_set.recall_k : std::vector<int32_t>{},
               options.wanted.has(Work::reads)},
              options.audit} {
  if constexpr (std::is_same_v<Real, float>)
    if (options.device && !options.audit && !stream.turns.any() && shared_.asked.recall_k.empty() &&
        !options.working_set.tier.any())
      if (auto device = options.device(stream))
        device_ = std::make_unique<DeviceEvaluator<Real>>(std::move(device), stream, shared_.asked, asked_of_device(),
                                                          norms_);
}

template <class Real>
HeadDevice::Asked HeadReplay<Real>::asked_of_device() const {
  HeadDevice::Asked asked{{}, options_.wanted.has(Work::recalls), options_.save.outputs};
  for (int32_t t = 0; t < stream_.tokens; ++t)
    if (scored_[size_t(t)] != 0) asked.rows.push_back(t);
  return asked;
}

template <class Real>
void HeadReplay<Real>::add(const std::vector<const Cell*>& cells) {
  decisions_.push_back(make_decision(cells, stream_, options_, scored_, codings_, more_rows_));
  const Decision<Real>& d = decisions_.back();
  prefixes_ = prefixes_ || (shared_.asked.prefix && d.cell().options().phase == Phase::oneshot);
}

// A cell that fails is reported as failed; the others go on.
template <class Real>
template <class F>
void HeadReplay<Real>::guarded(Decision<Real>& d, F work) {
  if (!d.alive()) return;
  try {
    work();
  } catch (const ReplayError& e) {
    d.fail(e.what());
  }
}

template <class Real>
void HeadReplay<Real>::run(const Stop& stop) {
  begin(stop);
  if (stop()) return;
  replay_on_device();
  advance(stream_.tokens, stop);
  if (stop()) return;
  for (Decision<Real>& d : decisions_)
    if (d.alive()) close(d);
}

template <class Real>
void HeadReplay<Real>::begin(const Stop& stop) {
  choose_ways();
  sum_prompt(stop);
  read_prompts(stop);
  if (stop()) return;
  make_evaluators();
  const auto streams = [&](const Decision<Real>& d) { return waits_for_cores(d) && d.streams_prompt(); };
  next_ = std::any_of(decisions_.begin(), decisions_.end(), streams) ? 0 : stream_.prompt;
  advance(stream_.prompt, stop);
}

template <class Real>
void HeadReplay<Real>::go_on(HeadReplay& before) {
  prompt_.go_on(before.prompt_);
  for (size_t i = 0; i < decisions_.size(); ++i)
    kvreplay::go_on(decisions_[i], before.decisions_[i], before.stream_, options_);
}

template <class Real>
void HeadReplay<Real>::report(const Report& report) {
  for (Decision<Real>& d : decisions_)
    for (size_t c = 0; c < d.cells.size(); ++c) report(*d.cells[c], result_of(d, c, stream_, options_));
}

// All caches of a decision go to the device, or none.
template <class Real>
void HeadReplay<Real>::choose_ways() {
  for (Decision<Real>& d : decisions_) {
    d.on_device = device_ != nullptr && std::all_of(d.caches.begin(), d.caches.end(),
                                                    [&](const auto& cache) { return device_->accepts(*cache); });
    for (const auto& cache : d.caches)
      every_row_ = every_row_ || (!d.on_device && (cache->observes() || cache->observes_later()));
  }
}

namespace {

// In place of sums over the prompt: some numbers that fall from token to token.
std::vector<double> made_up_sum(size_t count) {
  std::vector<double> sum(count);
  for (size_t i = 0; i < count; ++i) sum[i] = 1 / double(i + 1);
  return sum;
}

}  // namespace

template <class Real>
void HeadReplay<Real>::sum_prompt(const Stop& stop) {
  for (const Decision<Real>& d : decisions_)
    for (const auto& cache : d.caches)
      if (!d.streams_prompt()) prompt_.add(*cache);
  if (options_.sizes_alone) {
    const auto& s = exact_.stream();
    const auto columns = [&](const PromptPass& pass) {
      if (pass.rows_from >= 0) (void)prompt_pass(exact_, {{}, false, pass.rows_from, pass.on_row});
      return std::vector<std::vector<double>>(pass.sums.size(),
                                              made_up_sum(size_t(s.shape.heads + 1) * size_t(s.prompt)));
    };
    return prompt_.sum(
        columns, [&] { return made_up_sum(size_t(s.shape.heads) * size_t(s.tokens)); }, stop);
  }
  if (device_ == nullptr)
    return prompt_.sum([&](const PromptPass& pass) { return prompt_pass(exact_, pass); },
                       [&] { return future_sums(exact_, scored_); }, stop);
  // The CPU computes rows that a cache reads one by one, and all sums except those of the prompt's attention.
  const auto columns = [&](const PromptPass& pass) {
    PromptPass here = pass;
    std::vector<int32_t> there;
    for (const ColumnSum& sum : pass.sums)
      if (sum.of_prompt_attention()) there.push_back(sum.from);
    here.sums.erase(here.sums.begin(), here.sums.begin() + int64_t(there.size()));
    std::vector<std::vector<double>> sums;
    if (!there.empty()) sums = device_->device().prompt_sums(there, pass.maxima);
    for (auto& sum : prompt_pass(exact_, here)) sums.push_back(std::move(sum));
    return sums;
  };
  prompt_.sum(
      columns, [&] { return device_->device().future_sums(asked_of_device().rows); }, stop);
}

// Decisions that budgets have in common are computed once, at the largest budget.
template <class Real>
std::vector<size_t> HeadReplay<Real>::by_falling_budget() const {
  std::vector<size_t> order(decisions_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto budget = [&](size_t d) { return decisions_[d].cell().context().budget.tokens; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return budget(a) > budget(b); });
  return order;
}

template <class Real>
void HeadReplay<Real>::read_prompts(const Stop& stop) {
  std::map<FamilyKey, CacheReplay<Real>*> larger;
  for (const size_t i : by_falling_budget()) {
    Decision<Real>& d = decisions_[i];
    if (stop()) return;
    if (d.streams_prompt()) continue;
    guarded(d, [&] {
      for (const auto& cache : d.caches) {
        CacheReplay<Real>*& other = larger[family_of(d, *cache)];
        cache->prompt.read(prompt_.sums_of(*cache), options_.audit || other == nullptr ? nullptr : &other->prompt);
        if (other != nullptr) other->prompt.forget_selection();
        other = cache.get();
      }
    });
  }
  for (const auto& [key, cache] : larger)
    if (cache != nullptr) cache->prompt.forget_selection();  // null: the cache failed
}

template <class Real>
auto HeadReplay<Real>::family_of(const Decision<Real>& d, const CacheReplay<Real>& cache) const -> FamilyKey {
  const Cell& cell = d.cell();
  return {cache.steps.fast_path().kind, &cell.method(), cell.variant->instance, cell.seed.value_or(0),
          cache.first_head(),           cache.heads(),  cache.streams_prompt()};
}

// Runs after the prompt's caches are cut.
template <class Real>
void HeadReplay<Real>::make_evaluators() {
  for (Decision<Real>& d : decisions_)
    for (const auto& cache : d.caches)
      if (d.alive() && !d.on_device)
        d.evaluators.push_back(make_evaluator(*cache, shared_, families_[family_of(d, *cache)]));
}

template <class Real>
void HeadReplay<Real>::replay_on_device() {
  std::vector<std::pair<Decision<Real>*, size_t>> whose;  // (decision, index of its cache)
  std::map<FamilyKey, size_t> families;
  for (Decision<Real>& d : decisions_)
    for (size_t c = 0; c < d.caches.size() && d.alive() && d.on_device; ++c) {
      CacheReplay<Real>& cache = *d.caches[c];
      const size_t family = families.emplace(family_of(d, cache), families.size()).first->second;
      device_->add(cache, family);
      whose.emplace_back(&d, c);
    }
  if (whose.empty()) return;
  device_->replay([&](size_t i, const std::function<void()>& work) { guarded(*whose[i].first, work); },
                  [&](size_t i, const Results& results, const std::vector<ExactRow>& exact) {
                    take(*whose[i].first, whose[i].second, results, exact, 0);
                  });
}

// Replays the decisions that no device has taken.
template <class Real>
void HeadReplay<Real>::advance(int32_t end, const Stop& stop) {
  const auto waits = [&](const Decision<Real>& d) { return waits_for_cores(d); };
  if (std::none_of(decisions_.begin(), decisions_.end(), waits)) return;
  exact_.take_arrived();
  for (; next_ < end; next_ = tile_.end) {
    if (stop()) return;
    note_residents(next_);
    if (next_ == stream_.prompt)
      for (Decision<Real>& d : decisions_)
        if (d.alive()) hold_residents(d);
    const int32_t segment = next_ < stream_.prompt ? stream_.prompt : stream_.turns.next_begin(next_, stream_.tokens);
    next_tile(next_, std::min(end, segment), tile_);
    fill_tile(tile_);
    replay_tile(tile_, stop);
  }
}

template <class Real>
void HeadReplay<Real>::replay_tile(const Tile<Real>& tile, const Stop& stop) {
  const bool prompt = tile.begin < stream_.prompt;
  outputs_.open(tile);
  const std::vector<ExactRow> exact = exact_rows(tile, norms_);
  const auto each_cache = [&](auto work) {
    for (Decision<Real>& d : decisions_)
      if (!stop() && !d.on_device && (!prompt || d.streams_prompt()))
        guarded(d, [&] {
          for (size_t c = 0; c < d.caches.size(); ++c) work(d, c);
        });
  };
  each_cache([&](Decision<Real>& d, size_t c) {
    const Stopwatch watch;
    d.evaluators[c]->decide(tile);
    d.caches[c]->account.add_attention_seconds(watch.seconds());
  });
  each_cache([&](Decision<Real>& d, size_t c) { rows(d, c, tile, exact); });
}

// A segment begins with a tile.
template <class Real>
void HeadReplay<Real>::note_residents(int32_t t) {
  if (stream_.turns.beginning_at(t) == nullptr) return;
  for (Decision<Real>& d : decisions_)
    for (size_t c = 0; c < d.caches.size() && d.alive(); ++c) d.resident[c] = double(d.caches[c]->cache().size());
}

// Tiles do not depend on which cells are replayed, so a resumed run computes what a whole run does.
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

// Rows of this and the following tiles; t in the prompt: up to its end, otherwise up to the end of the stream.
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
  if (options_.wanted.has(Work::recalls) || options_.working_set.tier.top > 0) rank(tile);
  if (options_.working_set.tier.top > 0) list_best(tile);
}

template <class Real>
void HeadReplay<Real>::list_best(const Tile<Real>& tile) {
  best_.resize(tile.rows.size());
  for (size_t r = 0; r < tile.rows.size(); ++r) {
    best_[r].clear();
    if (tile.scored[r] == 0) continue;
    const int32_t t = tile.rows[r], count = std::min(options_.working_set.tier.top, tile.window.seen(t));
    for (int32_t token = 0; token <= t; ++token)
      if (tile.ranking[r].rank[size_t(token)] < count) best_[r].push_back(token);
  }
}

template <class Real>
void HeadReplay<Real>::rank(Tile<Real>& tile) {
  const auto& ks = shared_.asked.recall_k;
  const int32_t most = ks.empty() ? 0 : *std::max_element(ks.begin(), ks.end());
  int32_t depth = options_.working_set.tier.top, depth_of_heads = 0;
  for (const Decision<Real>& d : decisions_)
    for (const auto& cache : d.caches) {
      if (!d.alive() || d.on_device) continue;
      int32_t& of = cache->heads_differ() ? depth_of_heads : depth;
      of = std::max({of, most, cache->most_attended(tile.end - tile.begin)});
    }
  if (depth > 0) rank_rows(tile, depth, false);
  if (depth_of_heads > 0) rank_rows(tile, depth_of_heads, true);
}

template <class Real>
void HeadReplay<Real>::rows(Decision<Real>& d, size_t c, const Tile<Real>& tile, const std::vector<ExactRow>& exact) {
  const Stopwatch watch;
  CacheReplay<Real>& cache = *d.caches[c];
  const TierOptions& tier = options_.working_set.tier;
  results_.lists_reads =
      options_.wanted.has(Work::reads) && (tier.any() || cache.options().gqa_level == GqaLevel::query);
  results_.scores_reads = tier.policy == TierOptions::Policy::method && d.cell().variant->values.traits().chooses;
  results_.open(cache.heads(), int32_t(tile.rows.size()), stream_.shape.v_dim);
  d.evaluators[c]->rows(tile, results_);
  outputs_.project(cache.first_head(), results_);
  compare_outputs(tile, outputs_, cache.first_head(), shared_.asked.details, results_);
  project_errors(tile, outputs_, cache.first_head(), stream_.sensitivity, results_);
  take(d, c, results_, exact, watch.seconds());
}

// Hands a cache's rows to the cells that they belong to. exact: [heads of the stream, rows], token -1 for rows that are
// not scored.
template <class Real>
void HeadReplay<Real>::take(Decision<Real>& d, size_t c, const Results& results, const std::vector<ExactRow>& exact,
                            double seconds) {
  CacheReplay<Real>& cache = *d.caches[c];
  const bool layer = stream_.shape.blocks > 1 && !d.cache_for_each_kv_head;
  const int32_t group = stream_.shape.heads / stream_.shape.blocks, rows = results.rows, width = results.v_dim;
  const size_t spans = results.needles.size() / std::max<size_t>(1, results.cells());
  const size_t samples = size_t(stream_.sensitivity.samples), ks = shared_.asked.recall_k.size();
  const Projected projected_on{int32_t(samples), stream_.sensitivity.drawn(), stream_.sensitivity.answer};
  const std::vector<int32_t> none;
  int64_t tokens = 0, counted = 0;
  for (int32_t r = 0; r < rows; ++r) {
    const int32_t token = exact[size_t(r)].token;
    if (token < d.first_measured) continue;
    if (stream_.turns.any()) open_segment(d, stream_.turns.of(token));
    const size_t projected = stream_.sensitivity.at(0, token) != nullptr ? samples : 0;
    for (size_t i = 0; i < d.cells.size(); ++i) {
      if (!d.is_replayed_by(i, cache)) continue;
      const int32_t first = layer ? d.cells[i]->place.kv_head * group : 0;
      const int32_t heads = layer ? group : results.heads;
      const int32_t own = layer || d.cache_for_each_kv_head ? 0 : cache.first_head();
      for (int32_t h = 0; h < heads; ++h) {
        const size_t at = results.at(first + h, r);
        const size_t in_stream = size_t(cache.first_head() + first + h) * size_t(rows) + size_t(r);
        d.errors[i].add(
            results.of[at], exact[in_stream], own + h,
            RowParts<Real>{std::span(results.needles).subspan(at * spans, spans),
                           std::span(results.recalls).subspan(at * ks, ks),
                           std::span(results.projections).subspan(at * samples, projected), projected_on, width,
                           options_.save.outputs ? results.out.data() + at * size_t(width) : nullptr});
        if (on_row_)
          on_row_(*d.cells[i], own + h, token, std::span(results.out).subspan(at * size_t(width), size_t(width)));
      }
      d.errors[i].end_row();
      if (options_.wanted.has(Work::reads))
        d.sets[i].add(token, results.reads[size_t(r)], best_.empty() ? none : best_[size_t(r)]);
    }
    for (int32_t h = 0; h < results.heads; ++h) tokens += results.of[results.at(h, r)].attended, ++counted;
  }
  cache.account.count_attended(tokens, counted, seconds);
}

template class HeadReplay<float>;
template class HeadReplay<double>;

}  // namespace kvreplay
