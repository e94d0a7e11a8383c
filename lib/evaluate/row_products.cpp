#include "evaluate/row_products.hpp"

#include <algorithm>
#include <cmath>

#include "exact/head_stream.hpp"
#include "kernels/kernels.hpp"

namespace kvreplay {

template <class Real>
void RowProducts<Real>::open(const HeadStream<Real>& stream, const Tile<Real>& tile, std::span<const int32_t> queries,
                             const BasicCache<Real>& cache, int32_t first_head, Workspace<Real>& w) {
  begin_ = tile.begin;
  row_of_.assign(size_t(tile.end - tile.begin), -1);
  queries_ = int32_t(queries.size());
  for (int32_t i = 0; i < queries_; ++i) row_of_[size_t(queries[size_t(i)] - begin_)] = i;
  if (queries.empty()) return;
  shape_ = cache.shape();
  first_block_ = stream.shape.block_of(first_head);
  assign_slots(stream, tile, cache);
  const int32_t group = shape_.heads / shape_.blocks;
  w.products.resize(size_t(shape_.heads) * size_t(queries_) * size_t(used_));
  w.queries.resize(size_t(group) * size_t(queries_) * size_t(shape_.dim));
  for (int32_t b = 0; b < shape_.blocks; ++b) {
    Real* q = w.queries.data();
    for (int32_t h = b * group; h < (b + 1) * group; ++h)
      for (const int32_t t : queries) q = std::copy_n(stream.query(first_head + h, t), shape_.dim, q);
    kernels::scores(w.queries.data(), shape_.dim, group * queries_, keys_[size_t(b)], 0, used_,
                    w.products.data() + int64_t(b) * group * queries_ * used_, used_);
  }
}

template <class Real>
void RowProducts<Real>::assign_slots(const HeadStream<Real>& stream, const Tile<Real>& tile,
                                     const BasicCache<Real>& cache) {
  slot_of_.resize(size_t(stream.tokens), -1);
  const int32_t most = cache.size() + tile.end - tile.begin;
  if (most > int32_t(token_in_.size())) grow(most);
  free_slots(cache);
  // key(block): pointer to the key.
  const auto hold = [&](int32_t token, bool coded, auto key) {
    int32_t slot = slot_of_[size_t(token)];
    if (slot >= 0 && coded_in_[size_t(slot)] == uint8_t(coded)) return;
    if (slot < 0) slot = free_.back(), free_.pop_back();
    slot_of_[size_t(token)] = slot;
    token_in_[size_t(slot)] = token, coded_in_[size_t(slot)] = uint8_t(coded);
    used_ = std::max(used_, slot + 1);
    for (int32_t b = 0; b < shape_.blocks; ++b) keys_[size_t(b)].put(slot, key(b));
  };
  for (int32_t i = 0; i < cache.size(); ++i)
    hold(cache.token(i), is_coded(cache, i), [&](int32_t b) { return cache.key(i, b).data(); });
  for (int32_t t = tile.begin; t < tile.end; ++t)
    hold(t, false, [&](int32_t b) { return stream.block_keys(first_block_ + b) + int64_t(t) * shape_.dim; });
}

// Frees the slots of tokens that were evicted since the previous tile.
template <class Real>
void RowProducts<Real>::free_slots(const BasicCache<Real>& cache) {
  held_.assign(token_in_.size(), 0);
  for (const int32_t token : cache.tokens())
    if (const int32_t slot = slot_of_[size_t(token)]; slot >= 0) held_[size_t(slot)] = 1;
  free_.clear();
  used_ = 0;
  for (int32_t s = int32_t(token_in_.size()) - 1; s >= 0; --s) {
    int32_t& token = token_in_[size_t(s)];
    if (held_[size_t(s)] != 0) {
      used_ = std::max(used_, s + 1);
      continue;
    }
    if (token >= 0) slot_of_[size_t(token)] = -1;
    token = -1;
    free_.push_back(s);
  }
}

// A cache without a budget grows with the trace. All its keys are packed again.
template <class Real>
void RowProducts<Real>::grow(int32_t slots) {
  const int32_t before = int32_t(token_in_.size());
  const int32_t after = before == 0 ? slots : std::max(slots, before + before / 2);
  for (const int32_t token : token_in_)
    if (token >= 0) slot_of_[size_t(token)] = -1;
  token_in_.assign(size_t(after), -1);
  coded_in_.resize(size_t(after));
  keys_.clear();
  for (int32_t b = 0; b < shape_.blocks; ++b) keys_.emplace_back(after, shape_.dim);
}

template <class Real>
void RowProducts<Real>::see(const BasicCache<Real>& cache) {
  const std::span<const int32_t> tokens = cache.tokens();
  row_slots_.resize(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) row_slots_[i] = slot_of_[size_t(tokens[i])];
  coded_since_.clear();
  if (cache.coded_keys() == 0) return;
  for (int32_t i = 0; i < cache.size(); ++i)
    if (is_coded(cache, i) && coded_in_[size_t(row_slots_[size_t(i)])] == 0) coded_since_.push_back(i);
}

template <class Real>
Real RowProducts<Real>::fill(const QueryView<Real>& view, int32_t head, const BasicCache<Real>& cache,
                             const Workspace<Real>& w, std::span<Real> e) const {
  const int32_t n = int32_t(row_slots_.size());
  const int64_t row = int64_t(head) * queries_ + row_of_[size_t(view.token - begin_)];
  kernels::gather(w.products.data() + row * used_, row_slots_.data(), n, e.data());
  for (const int32_t i : coded_since_) e[size_t(i)] = dot_product(cache.key(i, view.block), view.query);
  const Real scale = leave_scale(view.rule, e.data(), n);
  Real top = std::max(scale * kernels::row_maximum(e.data(), n), view.sink_logit);
  if (top == -Real(INFINITY)) top = 0;
  kernels::exponentiate(e.data(), n, scale, top);
  return top;
}

template <class Real>
Real fill_from_coded(const StripGather<Real>& strip, std::span<const int32_t> exact_rows, const BasicCache<Real>& cache,
                     std::span<Real> e) {
  const int32_t n = cache.size();
  const auto own = [&](int32_t i) { return std::exp(strip.own.view.logit(cache, i) - strip.shift); };
  double sum = kernels::gather(strip.strip, cache.tokens().data(), n, e.data());
  for (const int32_t i : exact_rows) e[size_t(i)] = own(i);
  if (!exact_rows.empty()) sum = SerialTeam{}.sum(n, [&](int32_t i) { return double(e[size_t(i)]); });
  return in_range(sum) ? strip.shift : strip.own.fill(SerialTeam{}, cache, e);
}

template float fill_from_coded(const StripGather<float>&, std::span<const int32_t>, const BasicCache<float>&,
                               std::span<float>);
template double fill_from_coded(const StripGather<double>&, std::span<const int32_t>, const BasicCache<double>&,
                                std::span<double>);
template class RowProducts<float>;
template class RowProducts<double>;

}  // namespace kvreplay
