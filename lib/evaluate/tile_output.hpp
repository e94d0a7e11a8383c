#pragma once
#include <algorithm>
#include <cassert>
#include <cstdint>
#include <span>
#include <vector>

#include "core/attend.hpp"
#include "evaluate/evaluator.hpp"
#include "exact/tile.hpp"
#include "measures/row_result.hpp"

namespace kvreplay {

// Outputs of one cache over a tile, deferred: a step only stores the coefficient of each token, and close() multiplies
// with the values once. A token's column does not change when its row moves. Side outputs (RequestedOutputs) are
// separate products, so that requesting them changes no bit of the output.
template <class Real>
class TileOutput {
 public:
  // cache: state before token tile.begin arrives. prompt: length of the prefix. by_format: rows that differ from their
  // tokens were coded by the row format, once, and hold one token each. column_of: empty before the first call, used by
  // no other object.
  template <class C>
  void open(const C& cache, const Tile<Real>& tile, int32_t heads, int32_t prompt, bool by_format, Workspace<Real>& w,
            std::vector<int32_t>& column_of, size_t tokens) {
    column_of.resize(tokens, -1);
    for (const int32_t token : tokens_) column_of[size_t(token)] = -1;
    rows_ = int32_t(tile.rows.size());
    heads_ = heads;
    v_dim_ = cache.shape().v_dim;
    shape_ = cache.shape();
    prompt_ = prompt;
    column_of_ = column_of.data();
    columns_ = 0;
    tokens_.clear();
    shares_coded_ = cache.has_shared_codes();
    by_format_ = by_format && !shares_coded_ && cache.has_changed_rows();
    const auto each_token = [&](auto f) {
      for (int32_t i = 0; i < cache.size(); ++i)
        if (cache.token(i) >= 0) f(i, cache.token(i));
    };
    // Tokens whose values are coded in every row that holds them: their recorded values will not be read.
    constexpr int32_t kNone = -1, kExact = -2;
    if (shares_coded_ || by_format_) {
      each_token([&](int32_t i, int32_t token) {
        if (cache.coding(i).value_exact() || (shares_coded_ && !cache.refers(i))) column_of[size_t(token)] = kExact;
      });
      each_token([&](int32_t, int32_t token) {
        if (column_of[size_t(token)] == kNone) add(token);
      });
    }
    first_exact_ = columns_;
    if (by_format_) hold_values(cache, w);
    each_token([&](int32_t, int32_t token) {
      if (column_of[size_t(token)] < 0) add(token);
    });
    for (int32_t t = tile.begin; t < tile.end; ++t) add(t);
    all_ = int64_t(heads) * rows_ * columns_;
    w.tile_coefficients.assign(size_t(all_) * (shares_coded_ ? 2 : 1), Real(0));
    coefficients_ = w.tile_coefficients.data();
    set_coefficients_ = nullptr;
  }
  // Call when C_t is complete: determines the place of each row's coefficient for the writers.
  template <class C>
  void see(const C& cache) {
    places_.clear(), own_rows_.clear();
    if (!cache.has_changed_rows()) return;
    for (int32_t i = 0; i < cache.size(); ++i) {
      const int32_t column = cache.token(i) < 0 ? -1 : column_of_[cache.token(i)];
      const bool exact = cache.coding(i).value_exact();
      const bool has_column = cache.refers(i) || (by_format_ && (exact || column < first_exact_));
      if (!has_column) own_rows_.push_back(i);
      places_.push_back(!has_column ? kNowhere : column + (shares_coded_ && !exact ? all_ : 0));
    }
  }

  // The places of the coefficients of one (head, row). Rows without a column are added to `out` at once.
  struct Writer {
    const TileOutput* of;
    Real *coefficients, *out;  // [columns], and all_ places further on the coefficients of coded values; [v_dim];
                               // null: the row is not scored
    Real* prefix;              // [v_dim] or null: the part of the prompt's rows
    int32_t block;
    template <Team T, Cache C>
    void add(const T&, const C& cache, std::span<const Real> c) const {
      if (coefficients == nullptr) return;
      const int32_t n = cache.size();
      if (!cache.has_changed_rows()) {
        const int32_t *const token = cache.tokens().data(), *const column = of->column_of_;
        for (int32_t i = 0; i < n; ++i) coefficients[column[token[i]]] += c[size_t(i)];
        return;
      }
      const int64_t* const place = of->places_.data();
      for (int32_t i = 0; i < n; ++i)
        if (place[i] != kNowhere) coefficients[place[i]] += c[size_t(i)];
      for (const int32_t i : of->own_rows_)
        if (c[size_t(i)] != 0) add_own(cache, i, c[size_t(i)]);
    }
    void add_own(const auto& cache, int32_t row, Real weight) const {
      add_value(cache.value(row, block), weight, out);
      if (prefix != nullptr && cache.token(row) < of->prompt_) add_value(cache.value(row, block), weight, prefix);
    }
    static void add_value(std::span<const Real> value, Real weight, Real* to) {
      for (size_t x = 0; x < value.size(); ++x) to[x] += weight * value[x];
    }
  };
  Writer writer(int32_t head, int32_t row, RowResults<Real>& results) const {
    if (row < 0) return {};
    const int64_t at = int64_t(head) * rows_ + row;
    return {this, coefficients_ + at * columns_, results.out.data() + at * v_dim_,
            results.prefix.out.empty() ? nullptr : results.prefix.out.data() + at * v_dim_, shape_.block_of(head)};
  }
  // The coefficients [columns] of one (head, row) of RowResults::set, initially 0. They cost memory and a product from
  // the first call on.
  Real* set_row(int32_t head, int32_t row, Workspace<Real>& w) {
    if (set_coefficients_ == nullptr) {
      w.set_coefficients.assign(size_t(all_), Real(0));
      set_coefficients_ = w.set_coefficients.data();
    }
    return set_coefficients_ + (int64_t(head) * rows_ + row) * columns_;
  }
  int32_t column(int32_t token) const { return column_of_[token]; }

  // out += coefficients [heads * rows, columns] * values [columns, v_dim], for each kv head.
  // first_block: the stream's kv head that the cache's first one is. coded: decoded values, [blocks, tokens, v_dim], if
  // caches share them.
  void close(const HeadStream<Real>& stream, int32_t first_block, const Real* coded, Workspace<Real>& w,
             RowResults<Real>& results) const;

 private:
  void add(int32_t token) {
    column_of_[token] = columns_++;
    tokens_.push_back(token);
  }
  // Copies the values of the columns so far, [blocks, columns, v_dim]: their rows may have been evicted when the tile
  // closes.
  template <class C>
  void hold_values(const C& cache, Workspace<Real>& w) {
    w.coded_values.resize(size_t(shape_.blocks) * size_t(columns_) * size_t(v_dim_));
    for (int32_t i = 0; i < cache.size(); ++i) {
      const int32_t column = cache.token(i) < 0 ? -1 : column_of_[cache.token(i)];
      if (column < 0) continue;
      for (int32_t b = 0; b < shape_.blocks; ++b)
        std::copy_n(cache.value(i, b).data(), v_dim_,
                    w.coded_values.data() + (int64_t(b) * columns_ + column) * v_dim_);
    }
  }
  const Real* gather(const Real* values, int32_t first, int32_t end, Workspace<Real>& w) const;
  void add_product(int32_t block, const Real* coefficients, const Real* values, int32_t columns,
                   std::vector<Real>& out) const;
  // In a cache that is cut once, the prompt's tokens come before later tokens. Returns the end of the prompt's columns
  // among columns first .. last - 1.
  int32_t prefix_end(int32_t first, int32_t last) const {
    const auto later = [&](int32_t token) { return token >= prompt_; };
    const auto end = std::find_if(tokens_.begin() + first, tokens_.begin() + last, later);
    assert(std::all_of(end, tokens_.begin() + last, later));
    return int32_t(end - tokens_.begin());
  }
  int32_t first_exact_ = 0;  // first column whose value is exact
  bool shares_coded_ = false, by_format_ = false;
  int32_t rows_ = 0, heads_ = 0, v_dim_ = 0, columns_ = 0, prompt_ = 0;
  int32_t* column_of_ = nullptr;
  Real *coefficients_ = nullptr, *set_coefficients_ = nullptr;
  HeadShape shape_{};
  std::vector<int32_t> tokens_;
  static constexpr int64_t kNowhere = -1;
  int64_t all_ =
      0;  // number of coefficients of recorded values; equally many for coded values follow, if there are any
  std::vector<int64_t> places_;    // place per row of C_t, if some rows may be changed; or kNowhere
  std::vector<int32_t> own_rows_;  // rows without a column
};

}  // namespace kvreplay
