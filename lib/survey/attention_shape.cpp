#include "survey/attention_shape.hpp"

#include <algorithm>
#include <cmath>

#include "exact/tile.hpp"
#include "kernels/kernels.hpp"

namespace kvreplay {
namespace {

// One row of unnormalised probabilities; 0 outside first..t.
struct Row {
  const double* strip;
  double z;  // normaliser, including the sink logit's part
  int32_t first, t;
  int32_t entries(int32_t from) const { return t + 1 - std::max(first, from); }
  double largest(int32_t from) const {
    const int32_t begin = std::max(first, from);
    return kernels::row_maximum(strip + begin, t + 1 - begin);
  }
  // Number of entries from token `from` on that are below the threshold times the largest of them.
  int64_t sparse(int32_t from) const {
    const double limit = kSparsityThreshold * largest(from);
    int64_t count = 0;
    for (int32_t j = std::max(first, from); j <= t; ++j) count += strip[j] < limit ? 1 : 0;
    return count;
  }
  double effective() const {
    const int32_t n = t + 1 - first;
    double sum = 0;
    for (int32_t j = first; j <= t; ++j) sum += strip[j];
    return sum > 0 ? std::exp(std::log(sum) - kernels::sum_x_log_x(strip + first, n) / sum) : 0;
  }
};

// Sums over the rows of one query head. Row 0 sees only one token, so only sparsity_masked includes it.
struct RowSums {
  int64_t first_rows = 0, rows = 0, entries = 0, sparse = 0, entries_no_sink = 0, sparse_no_sink = 0, sink_first = 0;
  double sink_mass = 0, effective = 0;

  void add(const Row& row) {
    if (row.t == 0) return void(++first_rows);
    ++rows;
    entries += row.entries(0), sparse += row.sparse(0);
    entries_no_sink += row.entries(1), sparse_no_sink += row.sparse(1);
    sink_first += row.first == 0 && row.strip[0] >= row.largest(0) ? 1 : 0;
    sink_mass += row.strip[0] / row.z;
    effective += row.effective();
  }
  void finish(AttentionShape& shape, int32_t tokens) const {
    if (rows == 0) return;
    const auto n = double(rows), all = double(rows + first_rows) * tokens;
    const double masked = all - double(entries + first_rows);
    shape.sparsity.push_back(double(sparse) / double(entries));
    shape.sparsity_no_sink.push_back(double(sparse_no_sink) / double(entries_no_sink));
    shape.sparsity_masked.push_back((double(sparse) + masked) / all);
    shape.sink_mass.push_back(sink_mass / n);
    shape.top1_is_sink.push_back(double(sink_first) / n);
    shape.attended_effective.push_back(effective / n);
  }
};

// Sums of probabilities by token over a set of rows.
struct ColumnSums {
  int32_t rows = 0;
  std::vector<double> sum;  // [heads, tokens]
  void add(const Row& row, int32_t head, int32_t tokens) {
    double* const into = sum.data() + int64_t(head) * tokens;
    const double inverse = 1 / row.z;
    for (int32_t j = row.first; j <= row.t; ++j) into[j] += row.strip[j] * inverse;
    rows += head == 0 ? 1 : 0;
  }
};

struct ShapeSums {
  std::vector<RowSums> of_head;
  ColumnSums local, prompt, future;
};

void add_tile(const HeadStream<double>& stream, const Tile<double>& tile, ShapeSums& sums) {
  for (int32_t h = 0; h < tile.heads; ++h)
    for (int32_t r = 0; r < int32_t(tile.rows.size()); ++r) {
      const int32_t t = tile.rows[size_t(r)];
      const Row row{tile.strip_row(h, r), tile.z[size_t(tile.at(h, r))], stream.first_key(t), t};
      sums.of_head[size_t(h)].add(row);
      (t < stream.prompt ? sums.prompt : sums.future).add(row, h, stream.tokens);
      if (t < stream.prompt && t >= stream.prompt - kLocalRows) sums.local.add(row, h, stream.tokens);
    }
}

ShapeSums sum_rows(const HeadStream<double>& stream) {
  const ExactAttention<double> exact(stream);
  ShapeSums sums;
  sums.of_head.resize(size_t(stream.shape.heads));
  const std::vector<double> zero(size_t(stream.shape.heads) * size_t(stream.tokens), 0.0);
  sums.local.sum = sums.prompt.sum = sums.future.sum = zero;
  Tile<double> tile;
  const int32_t step = tile_rows(stream.shape.heads);
  for (int32_t begin = 0; begin < stream.tokens; begin += step) {
    tile.begin = begin;
    tile.end = std::min(stream.tokens, begin + step);
    tile.rows.clear();
    for (int32_t t = begin; t < tile.end; ++t)
      if (stream.query_row[size_t(t)] >= 0) tile.rows.push_back(t);
    if (tile.rows.empty()) continue;
    exact.strip_pass(tile);
    add_tile(stream, tile, sums);
  }
  return sums;
}

// A group's score is the sum of its query heads' scores (C9).
std::vector<double> head_sum(const std::vector<double>& sums, int32_t tokens) {
  std::vector<double> group(size_t(tokens), 0.0);
  for (size_t i = 0; i < sums.size(); ++i) group[i % size_t(tokens)] += sums[i];
  return group;
}

// The sums that `overlaps` compares, over the tokens of the prompt.
struct Statistic {
  const char* name;
  bool has_rows;
  std::vector<double> score;  // [prompt]
};

std::vector<double> overlap(const Statistic& a, const Statistic& b) {
  std::vector<double> result;
  if (!a.has_rows || !b.has_rows) return result;
  for (const double share : kTopShares) {
    const int32_t count = top_count(share, int32_t(a.score.size()));
    result.push_back(jaccard(top_tokens(a.score, count), top_tokens(b.score, count)));
  }
  return result;
}

void compare_statistics(const HeadStream<double>& stream, const ShapeSums& sums, AttentionShape& shape) {
  const auto of_prompt = [&](const std::vector<double>& sum) {
    std::vector<double> group = head_sum(sum, stream.tokens);
    group.resize(size_t(stream.prompt));
    return group;
  };
  const bool has_future = sums.future.rows > 0, has_prompt = sums.prompt.rows > 0;
  const std::vector<Statistic> all = {{"local", sums.local.rows > 0, of_prompt(sums.local.sum)},
                                      {"full", has_prompt, of_prompt(sums.prompt.sum)},
                                      {"future", has_future, of_prompt(sums.future.sum)},
                                      {"global", has_future && has_prompt, of_prompt(shape.accumulated_heads)}};
  for (size_t a = 0; a < all.size(); ++a)
    for (size_t b = a + 1; b < all.size(); ++b)
      shape.overlaps.push_back({std::string(all[a].name) + "_" + all[b].name, overlap(all[a], all[b])});
}

// Empty if a head's mass is 0, all of it taken by a sink logit.
std::vector<double> shares_of_heads(const std::vector<double>& sums, int32_t heads, int32_t tokens) {
  std::vector<double> shares;
  for (int32_t h = 0; h < heads; ++h) {
    const auto own = top_shares({sums.data() + int64_t(h) * tokens, size_t(tokens)});
    if (own.empty()) return {};
    shares.insert(shares.end(), own.begin(), own.end());
  }
  return shares;
}

void describe_tail(const HeadStream<double>& stream, AttentionShape& shape) {
  shape.top_share = top_shares(shape.accumulated);
  shape.gini = gini(shape.accumulated);
  shape.tail = fit_tail(shape.accumulated);
  if (shape.top_share.empty()) return;
  shape.top_share_heads = shares_of_heads(shape.accumulated_heads, shape.heads, stream.tokens);
  shape.top_share_null = top_shares(uniform_column_sums(stream));
  for (size_t i = 0; i < shape.top_share.size(); ++i)
    shape.top_share_ratio.push_back(shape.top_share[i] / shape.top_share_null[i]);
}

}  // namespace

std::vector<double> uniform_column_sums(const HeadStream<double>& stream) {
  // Adds a row's share at its first token and subtracts it after its last; a running sum follows.
  std::vector<double> sums(size_t(stream.tokens) + 1, 0.0);
  for (int32_t t = 0; t < stream.tokens; ++t) {
    if (stream.query_row[size_t(t)] < 0) continue;
    const int32_t first = stream.first_key(t);
    const double p = 1.0 / (t + 1 - first);
    sums[size_t(first)] += p;
    sums[size_t(t) + 1] -= p;
  }
  for (size_t j = 1; j < sums.size(); ++j) sums[j] += sums[j - 1];
  sums.pop_back();
  return sums;
}

AttentionShape survey_attention(const HeadStream<double>& stream) {
  const ShapeSums sums = sum_rows(stream);
  AttentionShape shape;
  shape.heads = stream.shape.heads;
  shape.rows = sums.prompt.rows + sums.future.rows;
  for (const RowSums& head : sums.of_head) head.finish(shape, stream.tokens);
  shape.accumulated_heads = sums.prompt.sum;
  for (size_t i = 0; i < shape.accumulated_heads.size(); ++i) shape.accumulated_heads[i] += sums.future.sum[i];
  shape.accumulated = head_sum(shape.accumulated_heads, stream.tokens);
  describe_tail(stream, shape);
  compare_statistics(stream, sums, shape);
  return shape;
}

}  // namespace kvreplay
