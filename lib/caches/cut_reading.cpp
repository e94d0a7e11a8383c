#include "caches/cut_reading.hpp"

#include <algorithm>
#include <cmath>

#include "caches/cache_state.hpp"
#include "caches/query_rows.hpp"
#include "core/softmax.hpp"

namespace kvreplay {

template <class Real>
CutReading<Real>::CutReading(const HeadStream<Real>& stream, const BoundMethod& method, int32_t first_head,
                             Aggregate how)
    : stream_(stream),
      method_(&method),
      first_head_(first_head),
      heads_(method.context().shape.heads),
      how_(how),
      plan_(method.cut_plan()),
      any_(method.reads_at_cuts()) {}

template <class Real>
void CutReading<Real>::follow(const BoundMethod& method) {
  method_ = &method, plan_ = method.cut_plan(), any_ = method.reads_at_cuts();
}

template <class Real>
int64_t CutReading<Real>::query_floats(int32_t seen) const {
  const PromptNeeds needs = method_->needs_at(seen);
  const int32_t first = needs.column_sums_from >= 0 ? needs.column_sums_from : needs.rows_from;
  const int64_t d = stream_.shape.dim, moments = d + d * (d + 1) / 2;
  const bool learns = needs.queries || (needs.known.any() && !method_->calibration().is_offline());
  return heads_ * (first >= 0 ? (seen - first) * d : learns ? moments : 0);
}

template <class Real>
typename Prompt<Real>::View CutReading<Real>::look(const CacheStorage<Real>& held, const BasicCache<Real>& cache) {
  const int32_t seen = cache.token(cache.size() - 1) + 1;
  seen_ = seen;
  const PromptNeeds needs = method_->needs_at(seen);
  typename Prompt<Real>::View view = view_of(stream_, first_head_, how_, held, needs.queries);
  view.size = seen;
  if (cache.has_changed_rows()) copy_rows(cache, view);
  if (needs.known.any() && !method_->calibration().is_offline())
    known_ = learn({query_rows(stream_, seen)}, query_shape(stream_), needs.known.of_prompt());
  if (needs.known.any())
    view.known =
        (method_->calibration().is_offline() ? stream_.known.at({method_->calibration(), needs.known.moments_after})
                                             : known_)
            .from(first_head_);
  const int32_t first = needs.column_sums_from >= 0 ? needs.column_sums_from : needs.rows_from;
  if (first < 0) return view;
  sums_.assign(size_t(heads_) * size_t(seen), 0);
  max_sums_.assign(how_ == Aggregate::max ? size_t(seen) : 0, 0);
  for (int32_t row = first; row < seen; ++row) vote(row, needs, cache);
  view.column_sums = sums_.data();
  if (!max_sums_.empty()) view.column_max_sums = max_sums_.data();
  return view;
}

// Attention of one row over the held tokens up to its own.
template <class Real>
void CutReading<Real>::vote(int32_t row, const PromptNeeds& needs, const BasicCache<Real>& cache) {
  const auto tokens = cache.tokens();
  const int32_t rows = int32_t(std::upper_bound(tokens.begin(), tokens.end(), row) - tokens.begin());
  row_.resize(size_t(heads_) * size_t(rows)), logits_.resize(row_.size());
  for (int32_t h = 0; h < heads_; ++h) attend(h, row, rows, cache);
  if (needs.column_sums_from >= 0) return add_row(needs, cache, rows);
  dense_.assign(size_t(heads_) * size_t(row + 1), 0);
  for (int32_t h = 0; h < heads_; ++h)
    for (int32_t i = 0; i < rows; ++i)
      dense_[size_t(h) * size_t(row + 1) + size_t(tokens[size_t(i)])] = row_[size_t(h) * size_t(rows) + size_t(i)];
  method_->method().host.observe_prompt(const_cast<std::byte*>(method_->policy()), row,
                                        {dense_.data(), heads_, row + 1, how_, nullptr, rows});
}

template <class Real>
void CutReading<Real>::attend(int32_t head, int32_t row, int32_t rows, const BasicCache<Real>& cache) {
  const int32_t in_stream = first_head_ + head;
  const int32_t block = stream_.shape.block_of(in_stream) - stream_.shape.block_of(first_head_);
  const std::span<const Real> query{stream_.query(in_stream, row), size_t(stream_.shape.dim)};
  const int32_t first_seen = stream_.window.first(row);
  double* const p = row_.data() + size_t(head) * size_t(rows);
  double* const logits = logits_.data() + size_t(head) * size_t(rows);
  double top = stream_.sink_logit(in_stream);
  for (int32_t i = 0; i < rows; ++i) {
    const bool sees = cache.token(i) >= first_seen;
    logits[i] = sees ? double(stream_.rule(dot_product(query, cache.key(i, block)))) : -double(INFINITY);
    top = std::max(top, logits[i]);
  }
  double sum = sink_term(stream_.sink_logit(in_stream), top);
  for (int32_t i = 0; i < rows; ++i) sum += p[i] = std::exp(logits[i] - top);
  for (int32_t i = 0; i < rows; ++i) p[i] /= sum;
}

template <class Real>
void CutReading<Real>::add_row(const PromptNeeds& needs, const BasicCache<Real>& cache, int32_t rows) {
  const int32_t seen = cache.token(cache.size() - 1) + 1;
  std::vector<double> largest(max_sums_.empty() ? 0 : size_t(rows), 0);
  for (int32_t h = 0; h < heads_; ++h) {
    const double* const p = row_.data() + size_t(h) * size_t(rows);
    const int32_t block = stream_.shape.block_of(first_head_ + h) - stream_.shape.block_of(first_head_);
    if (needs.column_sums_of != TokenScore::attention) find_output(p, rows, block, cache);
    for (int32_t i = 0; i < rows; ++i) {
      const double x = needs.column_sums_of == TokenScore::attention
                           ? p[i]
                           : token_score(needs.column_sums_of, p[i], logits_[size_t(h) * size_t(rows) + size_t(i)],
                                         cache.value(i, block), std::span<const double>(output_));
      sums_[size_t(h) * size_t(seen) + size_t(cache.token(i))] += x;
      if (!largest.empty()) largest[size_t(i)] = std::max(largest[size_t(i)], x);
    }
  }
  for (size_t i = 0; i < largest.size(); ++i) max_sums_[size_t(cache.token(int32_t(i)))] += largest[i];
}

template <class Real>
void CutReading<Real>::find_output(const double* p, int32_t rows, int32_t block, const BasicCache<Real>& cache) {
  output_.assign(size_t(stream_.shape.v_dim), 0);
  for (int32_t i = 0; i < rows; ++i) {
    const auto value = cache.value(i, block);
    for (size_t c = 0; c < output_.size(); ++c) output_[c] += p[i] * double(value[c]);
  }
}

// Scorers index keys and values by token.
template <class Real>
void CutReading<Real>::copy_rows(const BasicCache<Real>& cache, typename Prompt<Real>::View& view) {
  const HeadShape shape = cache.shape();
  const size_t tokens = size_t(view.size);
  keys_.resize(size_t(shape.blocks) * tokens * size_t(shape.dim));
  values_.resize(size_t(shape.blocks) * tokens * size_t(shape.v_dim));
  for (int32_t b = 0; b < shape.blocks; ++b)
    for (int32_t i = 0; i < cache.size(); ++i) {
      const size_t at = size_t(b) * tokens + size_t(std::max(cache.token(i), 0));
      const auto key = cache.key(i, b);
      const auto value = cache.value(i, b);
      std::copy(key.begin(), key.end(), keys_.begin() + int64_t(at) * shape.dim);
      std::copy(value.begin(), value.end(), values_.begin() + int64_t(at) * shape.v_dim);
    }
  view.keys = keys_.data(), view.values = values_.data();
  view.key_block = int64_t(tokens) * shape.dim, view.value_block = int64_t(tokens) * shape.v_dim;
}

template class CutReading<float>;
template class CutReading<double>;

}  // namespace kvreplay
