#include "replay/row_watch.hpp"

#include <algorithm>
#include <cmath>

#include "replay/plain_row.hpp"

namespace kvreplay {
namespace {

// Below, the strip's exponentials against the whole row's maximum have lost their digits (float32).
constexpr double kUnderflow = 1e-30;

template <class Real>
double sink_weight(const QueryView<Real>& view, double shift) {
  return view.sink_logit > -Real(INFINITY) ? std::exp(double(view.sink_logit) - shift) : 0.0;
}

}  // namespace

template <class Real>
void RowWatch<Real>::bind(const HeadStream<Real>& stream, const LaneWatch& watch, bool oneshot) {
  stream_ = &stream;
  watch_ = watch;
  prefix_ = oneshot && watch.prefix_error;
}

template <class Real>
void RowWatch<Real>::open(LaneTile<Real>& result) const {
  open_side_outputs(watch_, prefix_, result);
}

template <class Real>
void RowWatch<Real>::see(const Seen& seen, TileOutput<Real>& output, LaneWorkspace<Real>& w,
                         LaneTile<Real>& result) const {
  const size_t at = result.at(seen.head, seen.row);
  RowMeasure& m = result.measures[at];
  m.plain = is_plain(seen.cache, seen.view, seen.tokens.size());
  if (prefix_) result.prefix.weight[at] = prefix_weight(seen);
  if (watch_.set_error && !m.plain) {
    if (result.set.out.empty()) result.set.resize(result.cells(), result.v_dim);
    result.set.weight[at] = set_coefficients(seen, output.set_row(seen.head, seen.row, w), output);
  }
  if (!watch_.needles.empty())
    needle_shares(seen.tile.strip_row(seen.tile_head, seen.row), seen.tokens,
                  std::span<const TokenSpan>(watch_.needles),
                  result.needles.data() + at * (watch_.needles.size() + 1));
}

// A sink logit stays: it is the layer's, not a token's.
template <class Real>
double RowWatch<Real>::prefix_weight(const Seen& seen) const {
  double weight = sink_weight(seen.view, seen.tau.shift) / seen.tau.sum;
  for (int32_t i = 0; i < seen.cache.size(); ++i)
    if (seen.cache.token(i) < stream_->prompt) weight += double(seen.shares[i]);
  return weight;
}

template <class Real>
double RowWatch<Real>::set_coefficients(const Seen& seen, Real* to, const TileOutput<Real>& output) const {
  const Real* strip = seen.tile.strip_row(seen.tile_head, seen.row);
  double sum =
      sink_weight(seen.view, double(seen.tile.shift[size_t(seen.tile.at(seen.tile_head, seen.row))]));
  for (const int32_t token : seen.tokens)
    if (token >= 0) sum += double(strip[token]);
  if (sum < kUnderflow) return own_coefficients(seen, to, output);
  for (const int32_t token : seen.tokens)
    if (token >= 0) to[output.column(token)] = strip[token];
  return sum;
}

// The same against the largest logit of the attended tokens.
template <class Real>
double RowWatch<Real>::own_coefficients(const Seen& seen, Real* to, const TileOutput<Real>& output) const {
  LogitRule<Real> rule = seen.view.rule;
  rule.factor = 1;
  std::vector<std::pair<int32_t, double>> logits;  // token, logit
  double shift = double(seen.view.sink_logit);
  for (const int32_t token : seen.tokens) {
    if (token < 0) continue;
    const Real* key = stream_->block_keys(seen.view.block) + int64_t(token) * stream_->shape.dim;
    const std::span<const Real> numbers{key, size_t(stream_->shape.dim)};
    logits.emplace_back(token, double(rule(dot_product(numbers, seen.view.query))));
    shift = std::max(shift, logits.back().second);
  }
  if (logits.empty()) return 0;
  double sum = sink_weight(seen.view, shift);
  for (const auto& [token, logit] : logits) {
    const double e = std::exp(logit - shift);
    to[output.column(token)] = Real(e);
    sum += e;
  }
  return sum;
}

template <class Real>
std::span<const uint8_t> RowWatch<Real>::read(int32_t head, const uint8_t* chosen, int32_t rows) {
  if (head == 0) read_.assign(size_t(rows), kUnread);
  for (size_t i = 0; i < size_t(rows); ++i) {  // a row that one head reads is read
    const uint8_t either = read_[i] | chosen[i];
    read_[i] = either == (kRead | kWeighed) ? kRead : either;
  }
  return read_;
}

template <class Real>
bool is_plain(const BasicCache<Real>& cache, const QueryView<Real>& view, size_t attended) {
  if (view.rule.factor != 1) return false;
  const bool as_recorded = !cache.weighted() && !cache.has_own_rows() && !view.rotation.active();
  if (as_recorded)
    return view.chosen == nullptr ||
           std::find(view.chosen, view.chosen + cache.size(), kWeighed) == view.chosen + cache.size();
  size_t rows = 0;
  for (int32_t i = 0; i < cache.size(); ++i) {
    const bool counts = cache.num(i) != 0 || cache.den(i) != 0;
    if (!counts || (view.chosen != nullptr && view.chosen[i] == kUnread)) continue;
    if (view.chosen != nullptr && view.chosen[i] == kWeighed) return false;
    if (cache.num(i) != 1 || cache.den(i) != 1 || !cache.verbatim(i) || view.offset(cache, i) != 0)
      return false;
    ++rows;
  }
  return rows == attended;
}

template class RowWatch<float>;
template class RowWatch<double>;
template bool is_plain(const BasicCache<float>&, const QueryView<float>&, size_t);
template bool is_plain(const BasicCache<double>&, const QueryView<double>&, size_t);

}  // namespace kvreplay
