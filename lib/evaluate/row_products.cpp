#include "evaluate/row_products.hpp"

#include <algorithm>
#include <cmath>

#include "exact/logits.hpp"
#include "kernels/kernels.hpp"

namespace kvreplay {

template <class Real>
void RowProducts<Real>::open(const HeadStream<Real>& stream, const Tile<Real>& tile, const BasicCache<Real>& cache,
                             int32_t first_head, Workspace<Real>& w) {
  without_strip_.clear();
  begin_ = tile.begin;
  row_of_.assign(size_t(tile.end - tile.begin), -1);
  for (int32_t t = tile.begin; t < tile.end; ++t) {
    if (std::binary_search(tile.rows.begin(), tile.rows.end(), t)) continue;
    row_of_[size_t(t - begin_)] = int32_t(without_strip_.size());
    without_strip_.push_back(t);
  }
  if (without_strip_.empty()) return;
  shape_ = cache.shape();
  first_block_ = stream.shape.block_of(first_head);
  assign_slots(stream, tile, cache);
  const int32_t group = shape_.heads / shape_.blocks, rows = int32_t(without_strip_.size());
  w.products.resize(size_t(shape_.heads) * size_t(rows) * size_t(used_));
  w.queries.resize(size_t(group) * size_t(rows) * size_t(shape_.dim));
  for (int32_t b = 0; b < shape_.blocks; ++b) {
    Real* q = w.queries.data();
    for (int32_t h = b * group; h < (b + 1) * group; ++h)
      for (const int32_t t : without_strip_) q = std::copy_n(stream.query(first_head + h, t), shape_.dim, q);
    kernels::scores(w.queries.data(), shape_.dim, group * rows, keys_[size_t(b)], 0, used_,
                    w.products.data() + int64_t(b) * group * rows * used_, used_);
  }
}

template <class Real>
void RowProducts<Real>::assign_slots(const HeadStream<Real>& stream, const Tile<Real>& tile,
                                     const BasicCache<Real>& cache) {
  slot_of_.resize(size_t(stream.tokens), -1);
  const int32_t most = cache.size() + tile.end - tile.begin;
  if (most > int32_t(token_in_.size())) grow(stream, most);
  free_slots(cache);
  const auto hold = [&](int32_t token) {
    if (slot_of_[size_t(token)] >= 0) return;
    const int32_t slot = free_.back();
    free_.pop_back();
    slot_of_[size_t(token)] = slot;
    token_in_[size_t(slot)] = token;
    used_ = std::max(used_, slot + 1);
    put(stream, slot);
  };
  for (const int32_t token : cache.tokens()) hold(token);
  for (int32_t t = tile.begin; t < tile.end; ++t) hold(t);
}

// Of tokens that left since the tile before.
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

// A cache without a budget grows with the trace.
template <class Real>
void RowProducts<Real>::grow(const HeadStream<Real>& stream, int32_t slots) {
  const int32_t before = int32_t(token_in_.size());
  const int32_t after = before == 0 ? slots : std::max(slots, before + before / 2);
  token_in_.resize(size_t(after), -1);
  keys_.clear();
  for (int32_t b = 0; b < shape_.blocks; ++b) keys_.emplace_back(after, shape_.dim);
  for (int32_t s = 0; s < before; ++s)
    if (token_in_[size_t(s)] >= 0) put(stream, s);
}

template <class Real>
void RowProducts<Real>::put(const HeadStream<Real>& stream, int32_t slot) {
  for (int32_t b = 0; b < shape_.blocks; ++b)
    keys_[size_t(b)].put(slot, stream.block_keys(first_block_ + b) + int64_t(token_in_[size_t(slot)]) * shape_.dim);
}

template <class Real>
void RowProducts<Real>::see(const BasicCache<Real>& cache) {
  const std::span<const int32_t> tokens = cache.tokens();
  row_slots_.resize(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) row_slots_[i] = slot_of_[size_t(tokens[i])];
}

template <class Real>
Real RowProducts<Real>::fill(const QueryView<Real>& view, int32_t head, const Workspace<Real>& w,
                             std::span<Real> e) const {
  const int32_t n = int32_t(row_slots_.size());
  const int64_t row = int64_t(head) * int64_t(without_strip_.size()) + row_of_[size_t(view.token - begin_)];
  kernels::gather(w.products.data() + row * used_, row_slots_.data(), n, e.data());
  const Real scale = leave_scale(view.rule, e.data(), n);
  Real top = std::max(scale * kernels::row_maximum(e.data(), n), view.sink_logit);
  if (top == -Real(INFINITY)) top = 0;
  kernels::exponentiate(e.data(), n, scale, top);
  return top;
}

template class RowProducts<float>;
template class RowProducts<double>;

}  // namespace kvreplay
