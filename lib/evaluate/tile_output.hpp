#pragma once
#include <algorithm>
#include <cassert>
#include <cstdint>
#include <span>
#include <vector>

#include "core/attend.hpp"
#include "evaluate/workspace.hpp"
#include "exact/tile.hpp"
#include "measures/row_result.hpp"

namespace kvreplay {

// Outputs of one cache over a tile, deferred: each step only notes the coefficient of each token, and
// close() multiplies with the values once. A token's column does not change when its row moves. Side outputs
// (RowsAsked) are products of their own, so that what is watched changes no bit of the output.
template <class Real>
class TileOutput {
 public:
  // `cache` as it stands before token tile.begin arrives. `prompt`: its tokens are the prefix. column_of:
  // empty at first, and nobody else's.
  template <class C>
  void open(const C& cache, const Tile<Real>& tile, int32_t heads, int32_t prompt, Workspace<Real>& w,
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
    shares_coded_ = cache.shares_coded_rows();
    const auto each_token = [&](auto f) {
      for (int32_t i = 0; i < cache.size(); ++i)
        if (cache.token(i) >= 0) f(i, cache.token(i));
    };
    // Tokens whose values are coded by now, in every row that holds them, will not be read as they were recorded.
    constexpr int32_t kNone = -1, kExact = -2;
    if (shares_coded_) {
      each_token([&](int32_t i, int32_t token) {
        if (!cache.shares_coded_value(i)) column_of[size_t(token)] = kExact;
      });
      each_token([&](int32_t, int32_t token) {
        if (column_of[size_t(token)] == kNone) add(token);
      });
    }
    first_exact_ = columns_;
    each_token([&](int32_t, int32_t token) {
      if (column_of[size_t(token)] < 0) add(token);
    });
    for (int32_t t = tile.begin; t < tile.end; ++t) add(t);
    const size_t all = size_t(heads) * size_t(rows_) * size_t(columns_);
    w.tile_coefficients.assign(all, Real(0));
    if (shares_coded_) w.coded_coefficients.assign(all, Real(0));
    coefficients_ = w.tile_coefficients.data();
    coded_coefficients_ = shares_coded_ ? w.coded_coefficients.data() : nullptr;
    set_coefficients_ = nullptr;
  }

  // Where the coefficients of one (head, row) go; rows that are no token are added to `out` at once.
  struct Writer {
    const int32_t* column_of;
    Real *coefficients, *coded, *out;  // of this (head, row): [columns], twice, [v_dim]; null: nobody looks at it
    Real* prefix;                      // [v_dim] or null: what the prompt's rows add
    int32_t block, prompt;
    template <Team T, Cache C>
    void add(const T&, const C& cache, std::span<const Real> c) const {
      if (coefficients == nullptr) return;
      if (!cache.has_changed_rows()) {
        const int32_t* token = cache.tokens().data();
        for (int32_t i = 0; i < cache.size(); ++i) coefficients[column_of[token[i]]] += c[size_t(i)];
        return;
      }
      for (int32_t i = 0; i < cache.size(); ++i) {
        if (c[size_t(i)] == 0) continue;
        const bool refers = cache.refers(i), is_coded = coded != nullptr && !cache.coding(i).value_exact();
        if (refers) (is_coded ? coded : coefficients)[column_of[cache.token(i)]] += c[size_t(i)];
        else add_own(cache, i, c[size_t(i)]);
      }
    }
    void add_own(const auto& cache, int32_t row, Real weight) const {
      add_value(cache.value(row, block), weight, out);
      if (prefix != nullptr && cache.token(row) < prompt) add_value(cache.value(row, block), weight, prefix);
    }
    static void add_value(std::span<const Real> value, Real weight, Real* to) {
      for (size_t x = 0; x < value.size(); ++x) to[x] += weight * value[x];
    }
  };
  Writer writer(int32_t head, int32_t row, RowResults<Real>& results) const {
    if (row < 0) return {};
    const int64_t at = int64_t(head) * rows_ + row;
    return {column_of_,
            coefficients_ + at * columns_,
            coded_coefficients_ == nullptr ? nullptr : coded_coefficients_ + at * columns_,
            results.out.data() + at * v_dim_,
            results.prefix.out.empty() ? nullptr : results.prefix.out.data() + at * v_dim_,
            shape_.block_of(head),
            prompt_};
  }
  // Coefficients [columns] of one (head, row) of RowResults::set, all 0 at first; they cost memory and a
  // product from the first call on.
  Real* set_row(int32_t head, int32_t row, Workspace<Real>& w) {
    if (set_coefficients_ == nullptr) {
      w.set_coefficients.assign(w.tile_coefficients.size(), Real(0));
      set_coefficients_ = w.set_coefficients.data();
    }
    return set_coefficients_ + (int64_t(head) * rows_ + row) * columns_;
  }
  int32_t column(int32_t token) const { return column_of_[token]; }

  // out += coefficients [heads * rows, columns] * values [columns, v_dim], for each kv head.
  // coded: values as they are read back, [blocks, tokens, v_dim], where caches share them.
  void close(const HeadStream<Real>& stream, const Real* coded, Workspace<Real>& w, RowResults<Real>& results) const;

 private:
  void add(int32_t token) {
    column_of_[token] = columns_++;
    tokens_.push_back(token);
  }
  const Real* gather(const Real* values, int32_t first, int32_t end, Workspace<Real>& w) const;
  void add_product(int32_t block, const Real* coefficients, const Real* values, int32_t columns,
                   std::vector<Real>& out) const;
  // A cache that is cut once holds the prompt's tokens before those that came later: the end of theirs among columns
  // first .. last - 1.
  int32_t prefix_end(int32_t first, int32_t last) const {
    const auto later = [&](int32_t token) { return token >= prompt_; };
    const auto end = std::find_if(tokens_.begin() + first, tokens_.begin() + last, later);
    assert(std::all_of(end, tokens_.begin() + last, later));
    return int32_t(end - tokens_.begin());
  }
  int32_t first_exact_ = 0;  // column; the values of those before it are coded
  bool shares_coded_ = false;
  Real* coded_coefficients_ = nullptr;
  int32_t rows_ = 0, heads_ = 0, v_dim_ = 0, columns_ = 0, prompt_ = 0;
  int32_t* column_of_ = nullptr;
  Real *coefficients_ = nullptr, *set_coefficients_ = nullptr;
  HeadShape shape_{};
  std::vector<int32_t> tokens_;
};

}  // namespace kvreplay
