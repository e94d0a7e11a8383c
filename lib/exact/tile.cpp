#include "exact/tile.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "exact/head_stream.hpp"
#include "exact/row_scores.hpp"
#include "kernels/kernels.hpp"

namespace kvreplay {
namespace {

// Gathers queries of `count` heads from `first` on. q: [count * rows, dim].
template <class Real>
void gather_queries(const HeadStream<Real>& stream, const std::vector<int32_t>& rows, int32_t first, int32_t count,
                    std::vector<Real>& q) {
  q.clear();
  for (int32_t h = first; h < first + count; ++h)
    for (const int32_t t : rows) q.insert(q.end(), stream.query(h, t), stream.query(h, t) + stream.shape.dim);
}

// Sorts tokens by descending probability, then by index (C8). A radix sort orders the probabilities rounded to float;
// runs of equal floats are then sorted exactly.
class Ranker {
 public:
  const std::vector<int32_t>& order(const std::vector<double>& p) {
    const size_t n = p.size();
    keys_.resize(n), order_.resize(n), next_.resize(n);
    std::array<std::array<uint32_t, kDigits>, kPasses> begin{};
    for (size_t i = 0; i < n; ++i) {
      keys_[i] = ~std::bit_cast<uint32_t>(float(p[i]));
      for (size_t pass = 0; pass < kPasses; ++pass) ++begin[pass][digit(keys_[i], pass)];
    }
    std::iota(order_.begin(), order_.end(), 0);
    for (size_t pass = 0; pass < kPasses; ++pass) {
      uint32_t sum = 0;
      for (uint32_t& count : begin[pass]) sum += std::exchange(count, sum);
      for (const int32_t i : order_) next_[begin[pass][digit(keys_[size_t(i)], pass)]++] = i;
      order_.swap(next_);
    }
    const auto before = [&](int32_t a, int32_t b) { return p[size_t(a)] > p[size_t(b)]; };
    for (auto first = order_.begin(); first != order_.end();) {
      const uint32_t key = keys_[size_t(*first)];
      const auto last = std::find_if(first, order_.end(), [&](int32_t i) { return keys_[size_t(i)] != key; });
      if (last - first > 1) std::stable_sort(first, last, before);
      first = last;
    }
    return order_;
  }

 private:
  static constexpr size_t kBits = 11, kDigits = size_t{1} << kBits, kPasses = 3;
  static size_t digit(uint32_t key, size_t pass) { return key >> (pass * kBits) & (kDigits - 1); }
  std::vector<uint32_t> keys_;
  std::vector<int32_t> order_, next_;
};

void rank_row(const std::vector<double>& p, int32_t depth, Ranker& ranker, RowRanking& ranking) {
  const std::vector<int32_t>& order = ranker.order(p);
  const size_t deep = std::min(size_t(depth), p.size());
  ranking.rank.assign(p.size(), RowRanking::kUnranked);
  ranking.top_mass.resize(deep);
  double mass = 0;
  for (size_t i = 0; i < deep; ++i) {
    const size_t token = size_t(order[i]);
    ranking.rank[token] = int32_t(i);
    ranking.top_mass[i] = mass += p[token];
  }
}

// Mean probability over heads [first, first + count) in one row.
template <class Real>
void mean_probability(const Tile<Real>& tile, int32_t row, int32_t first, int32_t count, std::vector<double>& p) {
  p.assign(size_t(tile.rows[size_t(row)]) + 1, 0.0);
  for (int32_t h = first; h < first + count; ++h)
    kernels::accumulate(tile.strip_row(h, row), 1 / (tile.z[size_t(tile.at(h, row))] * count), 1.0, int32_t(p.size()),
                        p.data());
}

// sum[i] += probability of token i < width, over the tile's rows from token `first` on.
template <class Real>
void add_columns(const Tile<Real>& tile, int32_t head, int32_t first, int32_t width, double* sum) {
  for (int32_t r = 0; r < int32_t(tile.rows.size()); ++r) {
    const int32_t t = tile.rows[size_t(r)];
    if (t < first) continue;
    kernels::accumulate(tile.strip_row(head, r), 1 / tile.z[size_t(tile.at(head, r))], 1.0, std::min(t + 1, width),
                        sum);
  }
}

// Probabilities of every query head over tokens 0..t, [heads, t + 1].
template <class Real>
void probabilities(const Tile<Real>& tile, int32_t row, std::vector<double>& p) {
  const size_t n = size_t(tile.rows[size_t(row)]) + 1;
  p.resize(size_t(tile.heads) * n);
  for (int32_t h = 0; h < tile.heads; ++h) {
    const Real* strip = tile.strip_row(h, row);
    const double inverse = 1 / tile.z[size_t(tile.at(h, row))];
    for (size_t i = 0; i < n; ++i) p[size_t(h) * n + i] = double(strip[i]) * inverse;
  }
}

// Adds each token's maximum over heads. p: scores of a row for tokens 0..t, [heads, t + 1]. sum: [width].
void add_maxima(const std::vector<double>& p, int32_t heads, int32_t width, double* sum) {
  const size_t n = p.size() / size_t(heads);
  for (size_t i = 0; i < std::min(n, size_t(width)); ++i)
    sum[i] += aggregate(Aggregate::max, p.data() + i, int64_t(n), heads);
}

// Adds the attention of the tile's rows from token `from` on. to: [heads + 1, prompt].
template <class Real>
void add_attention(const Tile<Real>& tile, int32_t from, int32_t prompt, bool maxima, std::vector<double>& p,
                   double* to) {
  for (int32_t h = 0; h < tile.heads; ++h) add_columns(tile, h, from, prompt, to + int64_t(h) * prompt);
  for (int32_t r = 0; r < int32_t(tile.rows.size()) && maxima; ++r) {
    if (tile.rows[size_t(r)] < from) continue;
    probabilities(tile, r, p);
    add_maxima(p, tile.heads, prompt, to + int64_t(tile.heads) * prompt);
  }
}

// Likewise for scores that depend on the output.
template <class Real>
void add_scores(const HeadStream<Real>& stream, const Tile<Real>& tile, const ColumnSum& sum, bool maxima,
                std::vector<double>& p, double* to) {
  for (int32_t r = 0; r < int32_t(tile.rows.size()); ++r) {
    const int32_t t = tile.rows[size_t(r)];
    if (t < sum.from) continue;
    p.assign(size_t(tile.heads) * size_t(t + 1), 0.0);
    for (int32_t h = 0; h < tile.heads; ++h) {
      double* const row = p.data() + int64_t(h) * (t + 1);
      score_row(stream, tile, h, r, sum.of, row);
      for (int32_t i = 0; i <= t; ++i) to[int64_t(h) * stream.prompt + i] += row[i];
    }
    if (maxima) add_maxima(p, tile.heads, stream.prompt, to + int64_t(tile.heads) * stream.prompt);
  }
}

// Adds the attention of rows after the prompt.
template <class Real>
void add_rows_ahead(const ExactAttention<Real>& exact, const ColumnSum& sum, bool maxima, double* to) {
  const int32_t prompt = exact.stream().prompt;
  Tile<Real> tile;
  std::vector<double> p;
  tile.begin = prompt, tile.end = std::min(exact.stream().tokens, prompt + sum.ahead);
  tile.rows.resize(size_t(tile.end - tile.begin));
  std::iota(tile.rows.begin(), tile.rows.end(), tile.begin);
  if (tile.rows.empty()) return;
  exact.strip_pass(tile);
  add_attention(tile, sum.from, prompt, maxima, p, to);
}

}  // namespace

template <class Real>
ExactAttention<Real>::ExactAttention(const HeadStream<Real>& stream, const Real* keys)
    : stream_(stream), keys_(keys), packed_(stream.arrived()) {
  for (int32_t b = 0; b < stream.shape.blocks; ++b)
    panels_.emplace_back(keys + int64_t(b) * stream.tokens * stream.shape.dim, stream.tokens, stream.shape.dim);
}

template <class Real>
void ExactAttention<Real>::take_arrived() {
  for (; packed_ < stream_.arrived(); ++packed_)
    for (size_t b = 0; b < panels_.size(); ++b)
      panels_[b].put(packed_, keys_ + (int64_t(b) * stream_.tokens + packed_) * stream_.shape.dim);
}

template <class Real>
void ExactAttention<Real>::finish_row(Tile<Real>& tile, int32_t head, int32_t row) const {
  const int32_t t = tile.rows[size_t(row)], first = stream_.first_key(t), count = t + 1 - first;
  Real* strip = tile.strip.data() + tile.at(head, row) * tile.stride;
  const Real scale = leave_scale(stream_.rule, strip + first, count);
  Real top = scale * kernels::row_maximum(strip + first, count);
  top = std::max(top, Real(stream_.sink_logit(head)));
  const int32_t prompt = tile.divided ? std::max(stream_.prompt, first) : first;
  const kernels::RowSums early = kernels::exponentiate(strip + first, prompt - first, scale, top);
  const kernels::RowSums late = kernels::exponentiate(strip + prompt, t + 1 - prompt, scale, top);
  std::fill(strip, strip + first, Real(0));
  std::fill(strip + t + 1, strip + tile.stride, Real(0));
  const double z = early.sum + late.sum + sink_term(stream_.sink_logit(head), double(top));
  const size_t at = size_t(tile.at(head, row));
  tile.shift[at] = top;
  tile.z[at] = z;
  tile.l2[at] = std::sqrt(early.squares + late.squares) / z;
  if (tile.divided) tile.z_prompt[at] = early.sum, tile.z_later[at] = late.sum;
}

template <class Real>
void ExactAttention<Real>::strip_pass(Tile<Real>& tile) const {
  const int32_t rows = int32_t(tile.rows.size()), keys = tile.rows.back() + 1;
  stream_.hold_queries(std::min(tile.begin, tile.rows.front()), std::max(tile.end - 1, tile.rows.back()));
  tile.heads = stream_.shape.heads;
  tile.v_dim = stream_.shape.v_dim;
  tile.blocks = stream_.shape.blocks;
  tile.stride = padded(std::max(tile.end, keys));
  const size_t cells = size_t(tile.heads) * size_t(rows);
  // Reserve for the whole trace: growing from tile to tile would hold the strip twice.
  tile.strip.reserve(size_t(tile.heads) * size_t(tile_rows(tile.heads)) * size_t(stream_.tokens + kStripPad));
  tile.strip.resize(cells * size_t(tile.stride));
  tile.shift.resize(cells);
  tile.z.resize(cells);
  tile.l2.resize(cells);
  if (tile.divided) tile.z_prompt.resize(cells), tile.z_later.resize(cells);
  const int32_t group = tile.heads / tile.blocks;
  std::vector<Real> q;
  for (int32_t b = 0; b < tile.blocks; ++b) {  // query heads of one kv head are stacked
    gather_queries(stream_, tile.rows, b * group, group, q);
    kernels::scores(q.data(), stream_.shape.dim, group * rows, panels_[size_t(b)], 0, keys,
                    tile.strip.data() + tile.at(b * group, 0) * tile.stride, tile.stride);
  }
  for (int32_t h = 0; h < tile.heads; ++h)
    for (int32_t r = 0; r < rows; ++r) finish_row(tile, h, r);
}

// out = sum of strip[i] v_i over tokens first <= i < last, for scored rows.
template <class Real>
void ExactAttention<Real>::weigh_values(const Tile<Real>& tile, int32_t first, int32_t last,
                                        std::vector<Real>& out) const {
  const int32_t rows = int32_t(tile.rows.size()), group = tile.heads / tile.blocks;
  out.resize(size_t(tile.heads) * size_t(rows) * size_t(tile.v_dim));
  const bool all = std::find(tile.scored.begin(), tile.scored.end(), uint8_t{0}) == tile.scored.end();
  const auto weigh = [&](int32_t head, int32_t row, int32_t count) {
    const Real* values = stream_.block_values(stream_.shape.block_of(head)) + int64_t(first) * tile.v_dim;
    kernels::multiply(tile.strip_row(head, row) + first, tile.stride, count, values, last - first, tile.v_dim,
                      out.data() + tile.at(head, row) * tile.v_dim, tile.v_dim);
  };
  for (int32_t b = 0; all && b < tile.blocks; ++b) weigh(b * group, 0, group * rows);
  for (int32_t h = 0; !all && h < tile.heads; ++h)
    for (int32_t r = 0; r < rows; ++r)
      if (tile.scored[size_t(r)] != 0) weigh(h, r, 1);
}

template <class Real>
void ExactAttention<Real>::exact_pass(Tile<Real>& tile) const {
  tile.divided = tile.begin >= stream_.prompt;
  strip_pass(tile);
  if (!tile.any_scored()) return;
  const int32_t keys = tile.rows.back() + 1, prompt = tile.divided ? stream_.prompt : 0;
  if (tile.divided) weigh_values(tile, 0, prompt, tile.of_prompt);
  weigh_values(tile, prompt, keys, tile.of_later);
  tile.out.resize(tile.of_later.size());
  const size_t v_dim = size_t(tile.v_dim);
  for (size_t at = 0; at < tile.z.size(); ++at) {
    const Real inverse = Real(1 / tile.z[at]);
    const Real* later = tile.of_later.data() + at * v_dim;
    const Real* early = tile.divided ? tile.of_prompt.data() + at * v_dim : nullptr;
    Real* out = tile.out.data() + at * v_dim;
    for (size_t c = 0; c < v_dim; ++c) out[c] = (early != nullptr ? early[c] + later[c] : later[c]) * inverse;
  }
}

template <class Real>
void ExactAttention<Real>::prefix_pass(Tile<Real>& tile) const {
  tile.prefix_out.resize(tile.out.size());
  for (int32_t h = 0; h < tile.heads; ++h)
    for (int32_t r = 0; r < int32_t(tile.rows.size()); ++r) {
      const size_t at = size_t(tile.at(h, r));
      const double z = tile.z_prompt[at] + sink_term(stream_.sink_logit(h), double(tile.shift[at])),
                   inverse = z > 0 ? 1 / z : 0;  // may exceed the range of float
      for (size_t c = at * size_t(tile.v_dim); c < (at + 1) * size_t(tile.v_dim); ++c)
        tile.prefix_out[c] = Real(double(tile.of_prompt[c]) * inverse);
    }
}

template <class Real>
void rank_rows(Tile<Real>& tile, int32_t depth, bool of_heads) {
  const int32_t rows = int32_t(tile.rows.size());
  if (of_heads) tile.head_ranking.resize(size_t(tile.heads));
  for (auto& rankings : tile.head_ranking) rankings.resize(size_t(rows));
  if (!of_heads) tile.ranking.resize(size_t(rows));
  Ranker ranker;
  std::vector<double> p;
  const auto rank = [&](int32_t row, int32_t first, int32_t count, RowRanking& ranking) {
    mean_probability(tile, row, first, count, p);
    rank_row(p, depth, ranker, ranking);
  };
  for (int32_t r = 0; r < rows; ++r) {
    if (tile.scored[size_t(r)] == 0) continue;
    if (!of_heads) rank(r, 0, tile.heads, tile.ranking[size_t(r)]);
    for (int32_t h = 0; of_heads && h < tile.heads; ++h) rank(r, h, 1, tile.head_ranking[size_t(h)][size_t(r)]);
  }
}

template <class Real>
std::vector<std::vector<double>> prompt_pass(const ExactAttention<Real>& exact, const PromptPass& pass) {
  const HeadStream<Real>& stream = exact.stream();
  const int32_t prompt = stream.prompt, heads = stream.shape.heads;
  std::vector<std::vector<double>> sums(pass.sums.size(), std::vector<double>(size_t(heads + 1) * size_t(prompt), 0.0));
  std::vector<int32_t> firsts;
  for (const ColumnSum& sum : pass.sums) firsts.push_back(sum.from);
  if (pass.rows_from >= 0) firsts.push_back(pass.rows_from);
  if (firsts.empty()) return sums;
  Tile<Real> tile;
  std::vector<double> p;
  const int32_t step = tile_rows(heads);
  // Tiles start at multiples of `step`, so that a sum does not depend on what else is requested.
  const int32_t first = *std::min_element(firsts.begin(), firsts.end());
  for (int32_t begin = first / step * step; begin < prompt; begin += step) {
    tile.begin = begin;
    tile.end = std::min(prompt, begin + step);
    tile.rows.resize(size_t(tile.end - begin));
    std::iota(tile.rows.begin(), tile.rows.end(), begin);
    const bool outputs = std::any_of(pass.sums.begin(), pass.sums.end(), [&](const ColumnSum& sum) {
      return sum.of != TokenScore::attention && sum.from < tile.end;
    });
    tile.scored.assign(tile.rows.size(), outputs ? 1 : 0);
    exact.exact_pass(tile);
    for (size_t i = 0; i < sums.size(); ++i) {
      const ColumnSum& sum = pass.sums[i];
      if (sum.of == TokenScore::attention) add_attention(tile, sum.from, prompt, pass.maxima, p, sums[i].data());
      else add_scores(stream, tile, sum, pass.maxima, p, sums[i].data());
    }
    if (pass.rows_from < 0) continue;
    for (int32_t r = std::max(0, pass.rows_from - begin); r < int32_t(tile.rows.size()); ++r) {
      probabilities(tile, r, p);
      pass.on_row(begin + r, {p.data(), heads, begin + r + 1});
    }
  }
  for (size_t i = 0; i < sums.size(); ++i)
    if (pass.sums[i].ahead > 0) add_rows_ahead(exact, pass.sums[i], pass.maxima, sums[i].data());
  return sums;
}

template <class Real>
std::vector<double> future_sums(const ExactAttention<Real>& exact, const std::vector<uint8_t>& scored) {
  const HeadStream<Real>& stream = exact.stream();
  std::vector<double> sums(size_t(stream.shape.heads) * size_t(stream.tokens), 0.0);
  Tile<Real> tile;
  const int32_t step = tile_rows(stream.shape.heads);
  for (int32_t begin = stream.prompt; begin < stream.tokens; begin += step) {
    tile.begin = begin;
    tile.end = std::min(stream.tokens, begin + step);
    tile.rows.clear();
    for (int32_t t = begin; t < tile.end; ++t)
      if (scored[size_t(t)] != 0) tile.rows.push_back(t);
    if (tile.rows.empty()) continue;
    exact.strip_pass(tile);
    for (int32_t h = 0; h < stream.shape.heads; ++h)
      add_columns(tile, h, 0, stream.tokens, sums.data() + int64_t(h) * stream.tokens);
  }
  return sums;
}

template void rank_rows(Tile<float>&, int32_t, bool);
template void rank_rows(Tile<double>&, int32_t, bool);
template class ExactAttention<float>;
template class ExactAttention<double>;
template std::vector<std::vector<double>> prompt_pass(const ExactAttention<float>&, const PromptPass&);
template std::vector<std::vector<double>> prompt_pass(const ExactAttention<double>&, const PromptPass&);
template std::vector<double> future_sums(const ExactAttention<float>&, const std::vector<uint8_t>&);
template std::vector<double> future_sums(const ExactAttention<double>&, const std::vector<uint8_t>&);

}  // namespace kvreplay
