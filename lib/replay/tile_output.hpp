#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/attend.hpp"
#include "kernels/kernels.hpp"
#include "replay/lane.hpp"

namespace kvreplay {

// Outputs of one cache over a tile, deferred: each step only notes the coefficient of each token, and
// close() multiplies with the values once. A token's column does not change when its row moves.
template <class Real>
class TileOutput {
 public:
  // `cache` as it stands before token tile.begin arrives. `query_rows`: rows that will be emitted.
  template <class C>
  void open(const C& cache, const Tile<Real>& tile, int32_t heads, LaneWorkspace<Real>& w,
            std::vector<int32_t>& column_of) {
    rows_ = int32_t(tile.rows.size());
    heads_ = heads;
    v_dim_ = cache.shape().v_dim;
    shape_ = cache.shape();
    column_of_ = column_of.data();
    columns_ = 0;
    tokens_.clear();
    std::fill(column_of.begin(), column_of.end(), -1);
    for (const int32_t token : cache.tokens())
      if (token >= 0 && column_of[size_t(token)] < 0) add(token);
    for (int32_t t = tile.begin; t < tile.end; ++t) add(t);
    w.tile_coefficients.assign(size_t(heads) * size_t(rows_) * size_t(columns_), Real(0));
    coefficients_ = w.tile_coefficients.data();
  }

  // Where the coefficients of one (head, row) go; rows that are no token are added to `out` at once.
  struct Sink {
    const int32_t* column_of;
    Real *coefficients, *out;  // of this (head, row): [columns], [v_dim]
    int32_t block;
    template <Team T, Cache C>
    void emit(const T&, const C& cache, std::span<const Real> c) const {
      for (int32_t i = 0; i < cache.size(); ++i) {
        if (c[size_t(i)] == 0) continue;
        if (cache.verbatim(i)) coefficients[column_of[cache.token(i)]] += c[size_t(i)];
        else add_value(cache.value(i, block), c[size_t(i)]);
      }
    }
    void add_value(std::span<const Real> value, Real weight) const {
      for (size_t x = 0; x < value.size(); ++x) out[x] += weight * value[x];
    }
  };
  Sink sink(int32_t head, int32_t row, LaneTile<Real>& result) const {
    const int64_t at = int64_t(head) * rows_ + row;
    return {column_of_, coefficients_ + at * columns_, result.out.data() + at * v_dim_,
            shape_.block_of(head)};
  }

  // out += coefficients [heads * rows, columns] * values [columns, v_dim], for each kv head.
  void close(const HeadStream<Real>& stream, LaneWorkspace<Real>& w, LaneTile<Real>& result) const {
    w.tile_values.resize(size_t(columns_) * size_t(v_dim_));
    w.product.resize(size_t(heads_) * size_t(rows_) * size_t(v_dim_));
    const int32_t group_rows = heads_ / shape_.blocks * rows_;
    for (int32_t b = 0; b < shape_.blocks; ++b) {
      const Real* values = stream.block_values(b);
      for (int32_t c = 0; c < columns_; ++c)
        std::copy_n(values + int64_t(tokens_[size_t(c)]) * v_dim_, v_dim_,
                    w.tile_values.data() + int64_t(c) * v_dim_);
      kernels::multiply(coefficients_ + int64_t(b) * group_rows * columns_, columns_, group_rows,
                        w.tile_values.data(), columns_, v_dim_,
                        w.product.data() + int64_t(b) * group_rows * v_dim_, v_dim_);
    }
    for (size_t i = 0; i < result.out.size(); ++i) result.out[i] += w.product[i];
  }

 private:
  void add(int32_t token) {
    column_of_[token] = columns_++;
    tokens_.push_back(token);
  }
  int32_t rows_ = 0, heads_ = 0, v_dim_ = 0, columns_ = 0;
  int32_t* column_of_ = nullptr;
  Real* coefficients_ = nullptr;
  HeadShape shape_{};
  std::vector<int32_t> tokens_;
};

}  // namespace kvreplay
