#include "evaluate/stepwise.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "evaluate/verbatim_row.hpp"

namespace kvreplay {

// The query heads of one row of the tile, as core/step.hpp requires them.
template <class Real>
struct Stepwise<Real>::Heads {
  Stepwise& of;
  const Tile<Real>& tile;
  RowResults<Real>& results;
  int32_t row, token;  // row: index in the tile, or -1: no strip

  int32_t stream_head(int32_t h) const { return of.replay_.first_head() + h; }
  bool is_scored() const { return row >= 0 && tile.scored[size_t(row)] != 0; }

  QueryView<Real> view(int32_t h) const {
    const HeadStream<Real>& s = of.stream_;
    const bool moves = of.replay_.options().positions == Positions::cache;
    return {{s.query(stream_head(h), token), size_t(s.shape.dim)},
            s.rule,
            moves ? s.rotate() : Rotation<Real>{},
            token,
            nullptr,
            Real(s.sink_logit(stream_head(h))),
            s.shape.block_of(stream_head(h)) - s.shape.block_of(of.replay_.first_head())};
  }
  StepQueries<Real> queries_of_step() const { return of.replay_.steps.queries_at(token); }
  const RowProducts<Real>* products() const {
    return of.multiplies_ && of.products_.has(token) ? &of.products_ : nullptr;
  }
  TileSource<Real> source(int32_t h, const QueryView<Real>& v) const {
    if (row < 0) return {{nullptr, 0, {v}}, products(), h, of.w_};
    const int32_t head = stream_head(h);
    const Tile<Real>& from = of.coded_ != nullptr ? *of.coded_ : tile;
    return {{from.strip_row(head, row), from.shift[size_t(from.at(head, row))], {v}, of.coded_ != nullptr},
            products(),
            h,
            of.w_,
            gathers() ? &of.exact_rows_ : nullptr};
  }
  // Whether this row gathers its e from a strip over coded keys.
  bool gathers() const { return row >= 0 && of.coded_ != nullptr && of.multiplies_; }
  void opens(const BasicCache<Real>& cache) const {
    of.replay_.steps.open(token);
    if (products() != nullptr) of.products_.see(cache);
    if (row >= 0) of.output_.see(cache);
    if (!gathers()) return;
    of.exact_rows_.clear();
    for (int32_t i = 0; i < cache.size(); ++i)
      if (!cache.shares_coded_key(i)) of.exact_rows_.push_back(i);
  }
  auto writer(int32_t h) const { return of.output_.writer(h, row, results); }
  void done(int32_t h, Normaliser tau, const BasicCache<Real>&, const uint8_t* chosen) const {
    of.measure(*this, h, tau, chosen);
  }
};

template <class Real>
Stepwise<Real>::Stepwise(CacheReplay<Real>& cache, const RequestedOutputs& asked, bool audit,
                         Workspace<Real>& workspace, CodedStrips<Real>& strips)
    : replay_(cache), stream_(cache.stream()), asked_(asked), audit_(audit), w_(workspace), strips_(strips) {}

template <class Real>
void Stepwise<Real>::rows(const Tile<Real>& tile, RowResults<Real>& results) {
  const BasicCache<Real>& cache = replay_.cache();
  std::fill(results.out.begin(), results.out.end(), Real(0));
  open_side_outputs(asked_, replay_.options().phase == Phase::oneshot, results);
  const bool by_format = !audit_ && !replay_.rewrites_rows();
  output_.open(cache, tile, replay_.heads(), stream_.prompt, by_format, w_, column_of_, size_t(stream_.tokens));
  coded_ = coded_strip(tile);
  multiplies_ = may_multiply();
  if (multiplies_) products_.open(stream_, tile, rows_of_products(tile), cache, replay_.first_head(), w_);
  // A token that can be held several times may add more than one row.
  reserve(replay_.layout().extra_rows > 0 ? cache.capacity() : cache.size() + tile.end - tile.begin);
  const StepScratch<Real> scratch{w_.e.data(),      w_.coefficients.data(),   w_.group.data(),   w_.by_head.data(),
                                  w_.chosen.data(), w_.choice_weights.data(), w_.log_sums.data()};
  int32_t row = 0;
  for (int32_t t = tile.begin; t < tile.end; ++t) {
    const bool has_row = row < results.rows && tile.rows[size_t(row)] == t;
    Heads heads{*this, tile, results, has_row ? row : -1, t};
    replay_.steps.step(t, heads, scratch, replay_.observes() || heads.is_scored());
    row += has_row ? 1 : 0;
  }
  const CodedTokens<Real>* const coded = replay_.coded_tokens();
  output_.close(stream_, stream_.shape.block_of(replay_.first_head()), coded != nullptr ? coded->values() : nullptr, w_,
                results);
}

// Strips over coded keys, if the cache holds so many of the tokens that a strip over all of them is cheaper than the
// cache's own dot products. The decision depends only on the cache, so that its numbers do not depend on what else is
// replayed.
template <class Real>
const Tile<Real>* Stepwise<Real>::coded_strip(const Tile<Real>& tile) {
  constexpr int32_t kLeastShare = 8;
  CodedTokens<Real>* const tokens = replay_.coded_tokens();
  const bool codes_keys = !replay_.options().row_format.key.is_source();
  if (tokens == nullptr || !codes_keys || replay_.cache().size() < tile.begin / kLeastShare) return nullptr;
  return &strips_.of(*tokens, stream_, tile);
}

// An audit must read only the cache's own copy.
template <class Real>
bool Stepwise<Real>::may_multiply() const {
  const BasicCache<Real>& cache = replay_.cache();
  if (audit_ || cache.weighted() || replay_.moves_positions()) return false;
  return !cache.has_changed_rows() || !replay_.rewrites_rows();
}

// Rows without a strip; if coded keys are in no strip, every row that attends.
template <class Real>
std::span<const int32_t> Stepwise<Real>::rows_of_products(const Tile<Real>& tile) {
  const BasicCache<Real>& cache = replay_.cache();
  const bool verbatim = cache.has_shared_codes() && replay_.options().row_format.key.is_source();
  const bool all = cache.has_changed_rows() && !verbatim && coded_ == nullptr && !stream_.window.any();
  rows_of_products_.clear();
  size_t row = 0;
  for (int32_t t = tile.begin; t < tile.end; ++t) {
    const bool has_strip = row < tile.rows.size() && tile.rows[row] == t;
    if (has_strip ? all && (replay_.observes() || tile.scored[row] != 0) : replay_.observes())
      rows_of_products_.push_back(t);
    row += has_strip ? 1 : 0;
  }
  return rows_of_products_;
}

template <class Real>
void Stepwise<Real>::reserve(int32_t rows) {
  const auto& hooks = replay_.method().method().template of<Real>();
  const bool by_head = replay_.method().method().hooks.has(Hook::choose) || replay_.observes_heads();
  const size_t n = size_t(rows + 1), all = by_head ? size_t(replay_.heads()) * n : 0;
  if (w_.e.size() < n) w_.e.resize(n), w_.coefficients.resize(n), w_.group.resize(n);
  if (w_.by_head.size() < all) w_.by_head.resize(all), w_.chosen.resize(all);
  if (w_.log_sums.size() < size_t(replay_.heads())) w_.log_sums.resize(size_t(replay_.heads()));
  if (hooks.samples && w_.choice_weights.size() < all) w_.choice_weights.resize(all);
}

// Called before the eviction: the cache is C_t, and the scratch holds the head's probabilities.
template <class Real>
void Stepwise<Real>::measure(const Heads& at, int32_t h, Normaliser tau, const uint8_t* chosen) {
  if (!tau.any()) throw ReplayError(denominator_error(at.token));
  if (!at.is_scored()) return;
  const BasicCache<Real>& cache = replay_.cache();
  const auto tokens = attended_tokens(chosen);
  if (chosen != nullptr && replay_.account.has_lists())
    replay_.account.lists().add_attended(size_t(h), tokens, {chosen, size_t(cache.size())});
  RowResult& result = at.results.of[at.results.at(h, at.row)];
  measure_tokens(at, h, tau, tokens, result);
  result.spread = replay_.method().error_bound().spread;
  result.missed_bound = replay_.method().missed_bound(h).value_or(RowResult::kNone);
  QueryView<Real> view = at.view(h);
  view.rule.factor = Real(replay_.steps.logit_factor(at.token));
  view.chosen = chosen;
  if (chosen != nullptr && replay_.method().method().template of<Real>().samples)
    view.weights = w_.choice_weights.data() + int64_t(h) * cache.size();
  result.plain = is_plain(cache, view, tokens.size());
  measure_sides(at, h, tau, view, tokens, result);
  if (asked_.reads) result.repeated = repeated(at, h, tokens);
  if (chosen != nullptr) note_chosen(at, h, chosen);
  else if (h == 0 && asked_.reads) note_reads(at, tokens);
}

template <class Real>
void Stepwise<Real>::measure_tokens(const Heads& at, int32_t h, Normaliser tau, std::span<const int32_t> tokens,
                                    RowResult& r) const {
  const int32_t head = at.stream_head(h);
  const size_t exact = size_t(at.tile.at(head, at.row));
  const Real* strip = at.tile.strip_row(head, at.row);
  double mass = 0;
  int32_t attended = 0;
  for (const int32_t token : tokens)
    if (token >= 0) mass += double(strip[token]), ++attended;
  const double z = at.tile.z[exact], off = tau.shift - double(at.tile.shift[exact]);
  r.kept_mass = mass / z, r.attended = attended;
  r.tau = tau.sum / z * std::exp(off);
  r.log_tau = std::log(tau.sum / z) + off;
  const RowRanking* ranking = at.tile.ranking_of(replay_.heads_differ(), head, at.row);
  if (ranking == nullptr || r.attended == 0) return;
  int32_t hits = 0;
  const int32_t* const rank = ranking->rank.data();
  for (const int32_t token : tokens)
    if (token >= 0 && rank[token] < attended) ++hits;
  r.index_recall = double(hits) / r.attended;
  r.top_mass = ranking->top_mass[std::min(size_t(r.attended), ranking->top_mass.size()) - 1];
  if (asked_.recall_k.empty()) return;
  each_recall(at.results, at.results.at(h, at.row), asked_.recall_k, *ranking, at.tile.window.seen(at.token), z,
              [&](auto f) {
                for (const int32_t token : tokens)
                  if (token >= 0) f(token, double(strip[token]));
              });
}

// The tokens that a row of C_t attends to, each once; a negative one is a row that represents no single token.
template <class Real>
std::span<const int32_t> Stepwise<Real>::attended_tokens(const uint8_t* chosen) {
  const BasicCache<Real>& cache = replay_.cache();
  const bool split = replay_.layout().split;
  if (chosen == nullptr && !split) return cache.tokens();
  attended_.clear();
  for (int32_t i = 0; i < cache.size(); ++i) {
    const bool counts = cache.num(i) != 0 || cache.den(i) != 0;
    if (cache.token(i) >= 0 && counts && (chosen == nullptr || chosen[i] == kRead)) attended_.push_back(cache.token(i));
  }
  if (!split) return attended_;
  std::sort(attended_.begin(), attended_.end());
  attended_.erase(std::unique(attended_.begin(), attended_.end()), attended_.end());
  return attended_;
}

template <class Real>
void Stepwise<Real>::measure_sides(const Heads& at, int32_t h, Normaliser tau, const QueryView<Real>& view,
                                   std::span<const int32_t> tokens, RowResult& result) {
  RowResults<Real>& results = at.results;
  const size_t to = results.at(h, at.row);
  if (!results.prefix.out.empty()) results.prefix.weight[to] = prefix_weight(view, tau);
  if (asked_.set && !result.plain) {
    if (results.set.out.empty()) results.set.resize(results.cells(), results.v_dim);
    results.set.weight[to] = set_coefficients(at, h, view, tokens, output_.set_row(h, at.row, w_));
  }
  if (!asked_.needles.empty())
    needle_shares(at.tile.strip_row(at.stream_head(h), at.row), tokens, std::span<const TokenSpan>(asked_.needles),
                  results.needles.data() + to * (asked_.needles.size() + 1));
}

// The prompt rows' part of the denominator. Includes a sink logit, which belongs to the layer and not to a token.
template <class Real>
double Stepwise<Real>::prefix_weight(const QueryView<Real>& view, Normaliser tau) const {
  const BasicCache<Real>& cache = replay_.cache();
  double weight = sink_term(double(view.sink_logit), tau.shift) / tau.sum;
  for (int32_t i = 0; i < cache.size(); ++i)
    if (cache.token(i) < stream_.prompt) weight += double(w_.e[size_t(i)]);
  return weight;
}

// Writes the coefficients of exact attention over the attended tokens; returns their sum.
template <class Real>
double Stepwise<Real>::set_coefficients(const Heads& at, int32_t h, const QueryView<Real>& view,
                                        std::span<const int32_t> tokens, Real* to) const {
  const int32_t head = at.stream_head(h);
  const VerbatimRow<Real> row{stream_, at.tile, asked_, at.results, replay_.first_head(), h, at.row};
  const Real* strip = at.tile.strip_row(head, at.row);
  double sum = sink_term(double(view.sink_logit), row.shift());
  for (const int32_t token : tokens)
    if (token >= 0) sum += double(strip[token]);
  if (in_range(sum)) {
    for (const int32_t token : tokens)
      if (token >= 0) to[output_.column(token)] = strip[token];
    return sum;
  }
  const OwnSoftmax<Real> own = row.own_softmax([&](auto f) {
    for (const int32_t token : tokens)
      if (token >= 0) f(token, token + 1, 1.0, 1.0);
  });
  for (size_t i = 0; i < own.tokens.size(); ++i) to[output_.column(own.tokens[i])] = own.e[i];
  return own.tokens.empty() ? 0 : own.tau.sum;
}

// How many of the tokens the token before this one attended to.
template <class Real>
int32_t Stepwise<Real>::repeated(const Heads& at, int32_t head, std::span<const int32_t> tokens) {
  const bool own = replay_.heads_differ();
  if (!own && head > 0) return at.results.of[at.results.at(0, at.row)].repeated;
  const size_t n = size_t(stream_.tokens);
  if (last_row_.empty()) last_row_.assign(n * size_t(own ? replay_.heads() : 1), -2);
  int32_t* const last = last_row_.data() + (own ? size_t(head) * n : 0);
  int32_t count = 0;
  for (const int32_t token : tokens)
    if (token >= 0) count += std::exchange(last[token], at.token) == at.token - 1 ? 1 : 0;
  return count;
}

template <class Real>
void Stepwise<Real>::note_reads(const Heads& at, std::span<const int32_t> tokens) {
  StepReads& reads = at.results.reads[size_t(at.row)];
  for (const int32_t token : tokens) {
    reads.tokens += token >= 0 ? 1 : 0;
    if (token >= 0 && at.results.lists_reads) reads.read.push_back(token);
  }
  const BasicCache<Real>& cache = replay_.cache();
  for (int32_t i = 0; i < cache.size(); ++i)
    reads.others += cache.token(i) < 0 && (cache.num(i) != 0 || cache.den(i) != 0) ? 1 : 0;
}

// A row counts as read if any head reads it.
template <class Real>
void Stepwise<Real>::note_chosen(const Heads& at, int32_t head, const uint8_t* chosen) {
  const BasicCache<Real>& cache = replay_.cache();
  const size_t rows = size_t(cache.size());
  if (head == 0) read_.assign(rows, kUnread);
  for (size_t i = 0; i < rows; ++i) read_[i] |= chosen[i];
  if (head < replay_.heads() - 1) return;
  for (uint8_t& how : read_) how = (how & kRead) != 0 ? kRead : how;
  StepReads& reads = at.results.reads[size_t(at.row)];
  replay_.account.count_read(read_, reads);
  for (int32_t i = 0; i < cache.size() && at.results.lists_reads; ++i) {
    if (read_[size_t(i)] == kRead) reads.read.push_back(cache.token(i));
    if (read_[size_t(i)] == kScanned) reads.scan.push_back(cache.token(i));
  }
  if (!at.results.scores_reads) return;
  reads.held.assign(cache.tokens().begin(), cache.tokens().end());
  for (int32_t i = 0; i < cache.size(); ++i) reads.scores.push_back(replay_.steps.token_score(i));
}

template <class Real>
bool is_plain(const BasicCache<Real>& cache, const QueryView<Real>& view, size_t attended) {
  if (view.rule.factor != 1) return false;
  for (int32_t i = 0; view.weights != nullptr && i < cache.size(); ++i)
    if (counts(view.chosen[i]) && view.weights[i] != 1) return false;
  const bool as_recorded = !cache.weighted() && !cache.has_changed_rows() && !view.rotation.active();
  if (as_recorded) return view.chosen == nullptr || !any_counts_unread({view.chosen, size_t(cache.size())});
  size_t rows = 0;
  for (int32_t i = 0; i < cache.size(); ++i) {
    const bool weighs = cache.num(i) != 0 || cache.den(i) != 0;
    if (!weighs || (view.chosen != nullptr && !counts(view.chosen[i]))) continue;
    if (view.chosen != nullptr && counts_unread(view.chosen[i])) return false;
    if (cache.num(i) != 1 || cache.den(i) != 1 || !cache.verbatim(i) || view.offset(cache, i) != 0) return false;
    ++rows;
  }
  return rows == attended;
}

template class Stepwise<float>;
template class Stepwise<double>;
template bool is_plain(const BasicCache<float>&, const QueryView<float>&, size_t);
template bool is_plain(const BasicCache<double>&, const QueryView<double>&, size_t);

}  // namespace kvreplay
