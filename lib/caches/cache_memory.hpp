#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "core/cache.hpp"
#include "exact/head_stream.hpp"
#include "formats/coded_tokens.hpp"

namespace kvreplay {

// The memory of one cache, allocated before the first token. With `audit` the cache works on a private copy of the
// trace's rows. Everything in it that no policy may read is NaN: later tokens until they arrive, and evicted tokens
// from their eviction on.
template <class Real>
class CacheMemory {
 public:
  // rows: number of tokens held at a time. coded: tokens as a row format decodes them, or null.
  void allocate(const HeadStream<Real>& stream, const HeadShape& shape, const Layout& layout, int32_t rows, bool audit,
                const CodedTokens<Real>* coded = nullptr) {
    stream_ = &stream;
    const size_t n = size_t(stream.tokens);
    const int32_t capacity = rows + layout.own_rows + int32_t(layout.extra_rows);
    token_.resize(size_t(capacity));
    mark_.resize(size_t(capacity));
    copies_.assign(n, 0);
    evicted_.resize(n);
    if (layout.scores) score_.resize(size_t(capacity));
    if (layout.weights) num_.resize(size_t(capacity)), den_.resize(size_t(capacity));
    if (layout.coded) coding_.resize(size_t(capacity));
    if (layout.own_rows > 0) {
      slot_.resize(size_t(capacity));
      free_.resize(size_t(layout.own_rows));
      own_keys_.resize(size_t(layout.own_rows) * size_t(shape.blocks * shape.dim));
      own_values_.resize(size_t(layout.own_rows) * size_t(shape.blocks * shape.v_dim));
    }
    state_.assign(size_t(layout.state_doubles), 0.0);
    if (audit) {
      keys_.assign(stream.keys.size(), nan());
      values_.assign(stream.values.size(), nan());
    }
    storage_ = {audit ? keys_.data() : stream.keys.data(),
                audit ? values_.data() : stream.values.data(),
                coded != nullptr ? coded->keys() : nullptr,
                coded != nullptr ? coded->values() : nullptr,
                token_.data(),
                pointer(score_),
                pointer(num_),
                pointer(den_),
                mark_.data(),
                pointer(slot_),
                pointer(coding_),
                pointer(free_),
                pointer(own_keys_),
                pointer(own_values_),
                copies_.data(),
                evicted_.data(),
                counts_,
                capacity,
                layout.own_rows,
                int64_t(stream.tokens) * shape.dim,
                int64_t(stream.tokens) * shape.v_dim,
                shape};
  }
  // For rows that refer to the trace: reduces the room to `rows`, for the rows held now and those to come. Forgets
  // evicted tokens.
  void shrink(size_t rows) {
    const auto cut = [rows](auto& v) {
      if (v.empty()) return;
      v.resize(rows);
      v.shrink_to_fit();
    };
    cut(token_), cut(mark_), cut(num_), cut(den_), cut(score_);
    storage_.token = token_.data(), storage_.mark = mark_.data();
    storage_.num = pointer(num_), storage_.den = pointer(den_), storage_.score = pointer(score_);
    storage_.capacity = int32_t(rows);
    evicted_ = {}, storage_.evicted = nullptr;
  }
  bool allocated() const { return stream_ != nullptr; }
  // Keeps the rows without scores.
  void drop_scores() { score_ = {}, storage_.score = nullptr; }
  void drop_state() { state_ = {}; }
  const CacheStorage<Real>& storage() const { return storage_; }
  std::span<double> state() { return state_; }
  bool audited() const { return !keys_.empty(); }

  // Audit: makes the tokens first..last-1 readable.
  void reveal(int32_t first, int32_t last) {
    if (!audited()) return;
    for (int32_t b = 0; b < storage_.shape.blocks; ++b) {
      const int32_t offset = b * stream_->tokens;
      copy(stream_->keys, keys_, offset + first, offset + last, storage_.shape.dim);
      copy(stream_->values, values_, offset + first, offset + last, storage_.shape.v_dim);
    }
  }
  // Audit: makes evicted tokens unreadable.
  void poison_evicted() {
    if (!audited()) return;
    for (size_t i = 0; i < copies_.size(); ++i)
      if (copies_[i] == kEvicted) {
        for (size_t b = 0; b < size_t(storage_.shape.blocks); ++b) {
          fill(keys_, b * copies_.size() + i, storage_.shape.dim);
          fill(values_, b * copies_.size() + i, storage_.shape.v_dim);
        }
      }
  }

 private:
  static Real nan() { return std::numeric_limits<Real>::quiet_NaN(); }
  template <class T>
  static T* pointer(std::vector<T>& v) {
    return v.empty() ? nullptr : v.data();
  }
  static void copy(const std::vector<Real>& from, std::vector<Real>& to, int32_t first, int32_t last, int32_t width) {
    std::copy(from.begin() + int64_t(first) * width, from.begin() + int64_t(last) * width,
              to.begin() + int64_t(first) * width);
  }
  static void fill(std::vector<Real>& rows, size_t row, int32_t width) {
    std::fill_n(rows.begin() + int64_t(row) * width, width, nan());
  }
  const HeadStream<Real>* stream_ = nullptr;
  std::vector<int32_t> token_, slot_, free_, copies_, evicted_;
  std::vector<double> score_, state_;
  std::vector<Real> num_, den_, own_keys_, own_values_, keys_, values_;
  std::vector<uint8_t> mark_;
  std::vector<Coding> coding_;
  int32_t counts_[Count::kCounts] = {};
  CacheStorage<Real> storage_;
};

}  // namespace kvreplay
