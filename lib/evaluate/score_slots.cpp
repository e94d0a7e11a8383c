#include "evaluate/score_slots.hpp"

#include <algorithm>
#include <limits>

#include "exact/head_stream.hpp"
#include "kernels/kernels.hpp"

namespace kvreplay {
namespace {

constexpr int32_t kRound = 16;
int32_t rounded(int32_t n) { return (n + kRound - 1) / kRound * kRound; }

template <class Real>
constexpr Real kGone = -std::numeric_limits<Real>::infinity();

}  // namespace

template <class Real>
ScoreSlots<Real>::ScoreSlots(const ExactAttention<Real>& exact, CacheReplay<Real>& cache, const RequestedOutputs& asked)
    : exact_(exact), stream_(exact.stream()), replay_(cache), asked_(asked), rule_(cache.steps.fast_path().rule) {}

// Most tokens older than the window: a cut leaves the newest ones alone, unless they grow more with the text. chunks:
// of the prompt arrive while there are slots.
template <class Real>
int32_t ScoreSlots<Real>::most_slots(bool chunks) const {
  CutPlan plan = rule_.plan;
  plan.handed = 0;  // load() makes room for these
  if (!chunks) plan.options.prefill_chunk = 0;
  const int64_t most = rule_.plan.is_plain() ? rule_.budget : plan.most_rows(stream_.tokens);
  return int32_t(std::min<int64_t>(most - (plan.growth.any() ? 0 : rule_.protect.recent), stream_.tokens));
}

template <class Real>
void ScoreSlots<Real>::make_slots(int32_t count) {
  slots_ = rounded(count);
  slot_token_.assign(size_t(slots_), -1);
  column_.assign(size_t(slots_), 0);
  slot_score_.assign(size_t(slots_), 0.0);
  slot_guard_.assign(size_t(slots_), INFINITY);
  slot_gone_.assign(size_t(slots_), kGone<Real>);
  const HeadShape shape = replay_.cache().shape();
  slot_values_.assign(size_t(shape.blocks) * size_t(slots_) * size_t(shape.v_dim), Real(0));
}

template <class Real>
void ScoreSlots<Real>::fill_slot(int32_t slot, int32_t token, double score) {
  const HeadShape shape = replay_.cache().shape();
  const int32_t first = stream_.shape.block_of(replay_.first_head());
  slot_token_[size_t(slot)] = token;
  slot_score_[size_t(slot)] = score;
  slot_guard_[size_t(slot)] = token < rule_.protect.sinks ? INFINITY : 0;
  slot_gone_[size_t(slot)] = 0;
  for (int32_t b = 0; b < shape.blocks; ++b)
    std::copy_n(stream_.block_values(first + b) + int64_t(token) * shape.v_dim, shape.v_dim,
                slot_values_.data() + (int64_t(b) * slots_ + slot) * shape.v_dim);
  for (int32_t b = 0; b < int32_t(slot_keys_.size()); ++b)
    slot_keys_[size_t(b)].put(slot, stream_.block_keys(first + b) + int64_t(token) * shape.dim);
}

// Loads the tokens of the cache. The longest run of consecutive tokens at its end, at most the protected ones, becomes
// the window. Where the prompt arrives in chunks, it is the window, as no output needs copies of its values; without
// strips a row would cost O(n).
template <class Real>
void ScoreSlots<Real>::load(const Tile<Real>& tile) {
  const BasicCache<Real>& cache = replay_.cache();
  const int32_t begin = tile.begin;
  in_chunks_ = begin == 0 && rule_.plan.options.prefill_chunk > 0 && int32_t(tile.rows.size()) == tile.end;
  make_slots(in_chunks_ ? 0 : most_slots(true));
  int32_t first = cache.size();
  const int32_t most = std::min(first, rule_.protect.recent);
  while (cache.size() - first < most && cache.token(first - 1) == begin - (cache.size() - first) - 1) --first;
  low_ = begin - (cache.size() - first);
  const auto score = [&](int32_t i) { return rule_.counts() ? -cache.score(i) : cache.score(i); };
  score_.clear();
  for (int32_t i = first; i < cache.size(); ++i) score_.push_back(score(i));
  alive_.assign(score_.size(), Real(1));
  gone_.assign(score_.size(), Real(0));
  // Rows that another method left may be more than this one keeps, until its first cut.
  if (first > slots_) make_slots(first + rule_.plan.every);
  for (int32_t i = 0; i < first; ++i) fill_slot(i, cache.token(i), score(i));
  if (rule_.plan.is_plain()) replay_.steps.drop_scores();
}

template <class Real>
void ScoreSlots<Real>::open(const Tile<Real>& tile) {
  if (end_ < 0) load(tile);
  end_ = tile.end;
  const size_t window = size_t(rounded(tile.end - low_));
  alive_.resize(window, Real(1));
  gone_.resize(window, Real(0));
  score_.resize(window, 0.0);
  width_ = slots_ + int32_t(window);
  for (size_t s = 0; s < size_t(slots_); ++s) column_[s] = slot_token_[s] < 0 ? end_ : slot_token_[s];
  tile.list_scored(scored_);
  const size_t cells = size_t(heads()) * scored_.size();
  coefficients_.resize(cells * size_t(width_));
  unscored_.resize(size_t(width_));
  z_.resize(cells);
}

template <class Real>
void ScoreSlots<Real>::rows(const Tile<Real>& tile, RowResults<Real>& results) {
  open(tile);
  open_side_outputs(asked_, false, results);
  find_logits(tile);
  int32_t r = 0;
  for (int32_t t = tile.begin; t < tile.end; ++t) {
    const bool has_row = r < int32_t(tile.rows.size()) && tile.rows[size_t(r)] == t;
    step(tile, t, has_row ? r : -1, results);
    r += has_row ? 1 : 0;
  }
  close(tile, results);
  end_tile(tile.end);
}

template <class Real>
void ScoreSlots<Real>::find_logits(const Tile<Real>& tile) {
  without_strip_.clear();
  for (int32_t t = tile.begin; t < tile.end; ++t)
    if (!std::binary_search(tile.rows.begin(), tile.rows.end(), t)) without_strip_.push_back(t);
  if (without_strip_.empty()) return;
  const HeadShape shape = replay_.cache().shape();
  const int32_t block = stream_.shape.block_of(replay_.first_head()), group = shape.heads / shape.blocks;
  for (int32_t b = int32_t(slot_keys_.size()); b < shape.blocks; ++b) {
    slot_keys_.emplace_back(slots_, shape.dim);
    for (int32_t s = 0; s < slots_; ++s)
      if (const int32_t token = slot_token_[size_t(s)]; token >= 0)
        slot_keys_.back().put(s, stream_.block_keys(block + b) + int64_t(token) * shape.dim);
  }
  window_panel_ = low_ / kernels::kPanel * kernels::kPanel;
  const int32_t window = tile.end - window_panel_, rows = int32_t(without_strip_.size()), width = slots_ + window;
  logits_.resize(size_t(shape.heads) * size_t(rows) * size_t(width));
  queries_.resize(size_t(group) * size_t(rows) * size_t(shape.dim));
  for (int32_t b = 0; b < shape.blocks; ++b) {
    Real* q = queries_.data();
    for (int32_t h = b * group; h < (b + 1) * group; ++h)
      for (const int32_t t : without_strip_) q = std::copy_n(stream_.query(replay_.first_head() + h, t), shape.dim, q);
    Real* const to = logits_.data() + int64_t(b) * group * rows * width;
    kernels::scores(queries_.data(), shape.dim, group * rows, slot_keys_[size_t(b)], 0, slots_, to, width);
    kernels::scores(queries_.data(), shape.dim, group * rows, exact_.panels(block + b), window_panel_, window,
                    to + slots_, width);
  }
}

template <class Real>
void ScoreSlots<Real>::step(const Tile<Real>& tile, int32_t t, int32_t r, RowResults<Real>& results) {
  replay_.steps.arrive(t);
  const auto at = std::lower_bound(scored_.begin(), scored_.end(), r);
  const bool scored = r >= 0 && at != scored_.end() && *at == r;
  score_[size_t(t - low_)] = 0;
  const bool votes = rule_.carry != 0 || rule_.plan.is_due(t);  // scores that no later row carries on decide at cuts
  for (int32_t h = 0; h < heads() && (scored || votes); ++h) {
    const int32_t place = scored ? int32_t(h * int64_t(scored_.size()) + (at - scored_.begin())) : -1;
    if (r < 0) attend_without_strip(h, t);
    else attend({stream_, tile, asked_, results, replay_.first_head(), h, r}, place);
  }
  if (rule_.counts()) mark_low(t);
  evict(t);
}

template <class Real>
void ScoreSlots<Real>::evict(int32_t t) {
  victims_.clear();
  if (!rule_.plan.is_plain()) return evict_by_plan(t);
  const int32_t excess = replay_.cache().size() - rule_.budget;  // above 1 where another method has cut the prompt
  const int32_t leaving = excess > 0 ? std::max(rule_.drop, excess) : 0;
  for (int32_t i = 0; i < leaving; ++i) {
    const int32_t victim = lowest(t);
    if (victim < 0) break;  // every score is NaN
    victims_.push_back(victim);
    remove(victim);
  }
  replay_.steps.leave(t, victims_);
}

// The policy's own cut, by the scores kept here.
template <class Real>
void ScoreSlots<Real>::evict_by_plan(int32_t t) {
  if (rule_.plan.is_due(t)) {
    scores_by_token_.resize(size_t(stream_.tokens));
    each_score(t, [&](int32_t, int32_t token, double score) {
      scores_by_token_[size_t(token)] = rule_.counts() ? -score : score;
    });
    for (const int32_t token : replay_.steps.cut(t, scores_by_token_)) remove(token);
    return;
  }
  replay_.steps.leave(t, {});
}

template <class Real>
void ScoreSlots<Real>::attend(const VerbatimRow<Real>& row, int32_t place) {
  const int32_t t = row.token();
  Real* const e = place < 0 ? unscored_.data() : coefficients_.data() + int64_t(place) * width_;
  Real* const recent = e + slots_;
  const double older = kernels::gather(row.strip(), column_.data(), slots_, e);
  const double newer = kernels::weigh(row.strip() + low_, alive_.data(), span(t), recent);
  std::fill(recent + span(t), e + width_, Real(0));
  RowMass mass{older + newer + row.sink(), older + newer, replay_.cache().size()};
  Normaliser tau{mass.z, row.shift()};
  if (!in_range(mass.z)) tau = attend_alone(row, e);
  vote(e, tau.sum, row.head, t);
  if (place < 0) return;
  z_[size_t(place)] = tau.sum;
  const RowRanking* ranking = row.tile.ranking_of(replay_.heads_differ(), row.stream_head(), row.row);
  row.measure(mass, tau, ranking, true, [&](auto f) { each_run(t, f); });
}

template <class Real>
template <class F>
void ScoreSlots<Real>::each_score(int32_t t, F f) {
  for (int32_t s = 0; s < slots_; ++s)
    if (slot_token_[size_t(s)] >= 0) f(s, slot_token_[size_t(s)], slot_score_[size_t(s)]);
  for (int32_t i = 0; i < span(t); ++i) f(slots_ + i, low_ + i, score_[size_t(i)]);
}

// Adds probabilities as a step rounds them; a vote may depend on their last bit.
template <class Real>
void ScoreSlots<Real>::add_rounded(const Real* e, double inverse, bool first, int32_t n) {
  if (first) sums_.assign(size_t(width_), 0.0);
  for (size_t i = 0; i < size_t(n); ++i) sums_[i] += rule_.share * double(Real(double(e[i]) * inverse));
}

template <class Real>
void ScoreSlots<Real>::vote(const Real* e, double z, int32_t head, int32_t t) {
  const double weight = rule_.share / z;
  switch (rule_.vote) {
    case ScoreRule::Vote::attention: {
      const double carry = head == 0 ? rule_.carry : 1;
      kernels::accumulate(e, weight, carry, slots_, slot_score_.data());
      kernels::accumulate(e + slots_, weight, carry, span(t), score_.data());
      return;
    }
    case ScoreRule::Vote::mean:
      each_score(t, [&](int32_t i, int32_t token, double& score) {
        const double of_row = rule_.weight_of_row(token, t);
        score = (head == 0 ? 1 - of_row : 1) * score + of_row * weight * double(e[i]);
      });
      return;
    case ScoreRule::Vote::low_marks:
      return add_rounded(e, 1 / z, head == 0, slots_ + span(t));
    case ScoreRule::Vote::noisy:
      return vote_noisily(e, head, t);
  }
}

// ln (p e^g) of each token, then their softmax at the row's temperature. Tokens of probability 0 get no vote.
template <class Real>
void ScoreSlots<Real>::vote_noisily(const Real* e, int32_t head, int32_t t) {
  const int32_t n = slots_ + span(t);
  sums_.resize(size_t(width_)), noise_.resize(size_t(width_));
  double *const x = sums_.data(), *const g = noise_.data();
  if (rule_.noisy.noise) {
    positions_.clear();
    for (const int32_t token : slot_token_) positions_.push_back(std::max(token, 0));  // an empty slot gets no vote
    for (int32_t i = 0; i < span(t); ++i) positions_.push_back(low_ + i);
    rule_.noisy.rng.uniforms(RngStream::keyformer_noise, positions_, head, t, g);
    for (int32_t i = 0; i < n; ++i) g[i] = std::max(g[i], NoisyVote::kLeastUniform);
    kernels::logarithms(g, n);
  } else {
    std::fill_n(g, n, -1.0);
  }
  for (int32_t i = 0; i < n; ++i) x[i] = e[i] == 0 ? 1 : double(e[i]) / -g[i];
  kernels::logarithms(x, n);
  for (int32_t i = 0; i < n; ++i)
    if (e[i] == 0) x[i] = std::numeric_limits<double>::lowest();
  const double scale = 1 / rule_.noisy.temperature(t), top = kernels::row_maximum(x, n);
  const double sum = kernels::exponentiate(x, n, scale, scale * top).sum;
  kernels::accumulate(x, rule_.share / sum, 1, slots_, slot_score_.data());
  kernels::accumulate(x + slots_, rule_.share / sum, 1, span(t), score_.data());
}

template <class Real>
void ScoreSlots<Real>::mark_low(int32_t t) {
  const double limit = rule_.share * heads() / replay_.cache().size();
  each_score(t, [sums = sums_.data(), limit, marks = rule_.marks.row(t)](int32_t i, int32_t token, double& score) {
    score -= marks.set(token, sums[i] < limit);
  });
}

template <class Real>
void ScoreSlots<Real>::attend_without_strip(int32_t head, int32_t t) {
  const int32_t rows = int32_t(without_strip_.size()), width = int32_t(logits_.size()) / (heads() * rows);
  const int32_t row =
      int32_t(std::lower_bound(without_strip_.begin(), without_strip_.end(), t) - without_strip_.begin());
  Real* const logits = logits_.data() + (int64_t(head) * rows + row) * width;
  Real* const e = unscored_.data();
  const int32_t n = slots_ + span(t);
  Real* const recent = logits + slots_ + (low_ - window_panel_);
  leave_scale(stream_.rule, recent, span(t));
  const Real scale = leave_scale(stream_.rule, logits, slots_);
  kernels::add(logits, slot_gone_.data(), Real(1), slots_, e);
  kernels::add(recent, gone_.data(), Real(1), span(t), e + slots_);
  Real top = scale * kernels::row_maximum(e, n);
  const double sink = stream_.sink_logit(replay_.first_head() + head);
  top = std::max(top, Real(sink));
  const double z = kernels::exponentiate(e, n, scale, top).sum + sink_term(sink, double(top));
  if (!Normaliser{z, 0}.any()) throw ReplayError(denominator_error(t));
  vote(e, z, head, t);
}

template <class Real>
Normaliser ScoreSlots<Real>::attend_alone(const VerbatimRow<Real>& row, Real* e) {
  std::fill(e, e + width_, Real(0));
  const OwnSoftmax<Real> own = row.own_softmax([&](auto f) { each_run(row.token(), f); });
  for (size_t i = 0; i < own.tokens.size(); ++i) {
    const int32_t token = own.tokens[i];
    const auto slot = [&] { return std::find(slot_token_.begin(), slot_token_.end(), token) - slot_token_.begin(); };
    e[token >= low_ ? slots_ + token - low_ : slot()] = own.e[i];
  }
  return own.tau;
}

// The tokens of C_t, in no particular order.
template <class Real>
template <class F>
void ScoreSlots<Real>::each_run(int32_t t, F f) const {
  for (const int32_t token : slot_token_)
    if (token >= 0) f(token, token + 1, 1.0, 1.0);
  for (int32_t i = 0; i < span(t); ++i)
    if (alive_[size_t(i)] != 0) f(low_ + i, low_ + i + 1, 1.0, 1.0);
}

// The token with the lowest score, among the slots and the tokens that left the protected window within this tile.
template <class Real>
int32_t ScoreSlots<Real>::lowest(int32_t t) {
  kernels::Lowest best = kernels::lowest(slot_score_.data(), slot_guard_.data(), slot_token_.data(), slots_);
  for (int32_t i = std::max(0, rule_.protect.sinks - low_); low_ + i <= t - rule_.protect.recent; ++i)
    if (alive_[size_t(i)] != 0 && score_[size_t(i)] <= best.score) best = {score_[size_t(i)], low_ + i};
  return best.token;
}

template <class Real>
void ScoreSlots<Real>::remove(int32_t token) {
  if (token >= low_) {
    alive_[size_t(token - low_)] = 0;
    gone_[size_t(token - low_)] = kGone<Real>;
    return;
  }
  const size_t slot = size_t(std::find(slot_token_.begin(), slot_token_.end(), token) - slot_token_.begin());
  slot_token_[slot] = -1;
  slot_guard_[slot] = INFINITY;
  slot_gone_[slot] = kGone<Real>;
  column_[slot] = end_;
}

template <class Real>
void ScoreSlots<Real>::close(const Tile<Real>& tile, RowResults<Real>& results) {
  const HeadShape shape = replay_.cache().shape();
  const int32_t m = shape.heads / shape.blocks * int32_t(scored_.size()), width = shape.v_dim;
  if (m == 0) return;
  const int32_t first = stream_.shape.block_of(replay_.first_head());
  product_.resize(size_t(shape.blocks) * size_t(m) * size_t(width));
  for (int32_t b = 0; b < shape.blocks; ++b) {
    const Real* e = coefficients_.data() + int64_t(b) * m * width_;
    Real* out = product_.data() + int64_t(b) * m * width;
    kernels::multiply(e, width_, m, slot_values_.data() + int64_t(b) * slots_ * width, slots_, width, out, width);
    kernels::multiply(e + slots_, width_, m, stream_.block_values(first + b) + int64_t(low_) * width, tile.end - low_,
                      width, out, width, true);
  }
  size_t at = 0;
  for (int32_t h = 0; h < shape.heads; ++h)
    for (const int32_t r : scored_) {
      const VerbatimRow<Real> row{stream_, tile, asked_, results, replay_.first_head(), h, r};
      row.put(product_.data() + at * size_t(width), z_[at]);
      ++at;
    }
}

// Moves tokens that grew older than the protected window into free slots.
template <class Real>
void ScoreSlots<Real>::end_tile(int32_t end) {
  if (in_chunks_ && end < rule_.plan.prompt) return;
  if (in_chunks_) in_chunks_ = false, make_slots(most_slots(false));
  const int32_t next = std::max(low_, end - rule_.protect.recent);
  int32_t slot = 0;
  for (int32_t i = 0; i < next - low_; ++i) {
    if (alive_[size_t(i)] == 0) continue;
    while (slot_token_[size_t(slot)] >= 0) ++slot;
    fill_slot(slot, low_ + i, score_[size_t(i)]);
  }
  score_.erase(score_.begin(), score_.begin() + (next - low_));
  score_.resize(size_t(end - next));
  alive_.erase(alive_.begin(), alive_.begin() + (next - low_));
  alive_.resize(size_t(end - next));
  gone_.erase(gone_.begin(), gone_.begin() + (next - low_));
  gone_.resize(size_t(end - next));
  low_ = next;
}

template class ScoreSlots<float>;
template class ScoreSlots<double>;

}  // namespace kvreplay
