#include "evaluate/tile_output.hpp"

#include "kernels/kernels.hpp"

namespace kvreplay {

// Gathers the values of few tokens at a time, so that products read them from the first-level cache.
constexpr int32_t kColumnsAtOnce = 96;

template <class Real>
void TileOutput<Real>::close(const HeadStream<Real>& stream, int32_t first_block, const Real* coded, Workspace<Real>& w,
                             RowResults<Real>& results) const {
  if (rows_ == 0) return;
  const bool prefix = !results.prefix.out.empty();
  // Adds columns from .. to - 1 to all outputs that use them. values_of(first, end): their values, row after row.
  const auto add_columns = [&](const Real* coefficients, auto values_of, int32_t block, int32_t from, int32_t to,
                               const Real* set) {
    const int32_t prefix_to = prefix ? prefix_end(from, to) : from;
    for (int32_t first = from; first < to; first += kColumnsAtOnce) {
      const int32_t end = std::min(to, first + kColumnsAtOnce);
      const Real* const values = values_of(first, end);
      if (coefficients != nullptr) {
        add_product(block, coefficients + first, values, end - first, results.out);
        add_product(block, coefficients + first, values, std::min(end, prefix_to) - first, results.prefix.out);
      }
      if (set != nullptr) add_product(block, set + first, values, end - first, results.set.out);
    }
  };
  const auto add = [&](const Real* coefficients, const Real* of_tokens, int32_t block, int32_t from, int32_t to,
                       const Real* set) {
    const auto values_of = [&](int32_t first, int32_t end) { return gather(of_tokens, first, end, w); };
    add_columns(coefficients, values_of, block, from, to, set);
  };
  for (int32_t b = 0; b < shape_.blocks; ++b) {
    if (set_coefficients_ != nullptr)
      add(nullptr, stream.block_values(first_block + b), b, 0, first_exact_, set_coefficients_);
    add(coefficients_, stream.block_values(first_block + b), b, first_exact_, columns_, set_coefficients_);
    if (by_format_) {
      const Real* const held = w.coded_values.data() + int64_t(b) * first_exact_ * v_dim_;
      const auto values_of = [&](int32_t first, int32_t) { return held + int64_t(first) * v_dim_; };
      add_columns(coefficients_, values_of, b, 0, first_exact_, nullptr);
    }
    if (!shares_coded_) continue;
    const Real* const values = coded + int64_t(first_block + b) * stream.tokens * v_dim_;
    add(coefficients_ + all_, values, b, 0, first_exact_, nullptr);
    add(coefficients_ + all_, values, b, first_exact_, columns_, nullptr);
  }
}

// The values of the columns, row after row. Consecutive tokens need no copy.
template <class Real>
const Real* TileOutput<Real>::gather(const Real* values, int32_t first, int32_t end, Workspace<Real>& w) const {
  const auto value = [&](int32_t c) { return values + int64_t(tokens_[size_t(c)]) * v_dim_; };
  int32_t next = first + 1;
  while (next < end && tokens_[size_t(next)] == tokens_[size_t(next - 1)] + 1) ++next;
  if (next == end) return value(first);
  w.tile_values.resize(size_t(kColumnsAtOnce) * size_t(v_dim_));
  for (int32_t c = first; c < end; ++c)
    std::copy_n(value(c), v_dim_, w.tile_values.data() + int64_t(c - first) * v_dim_);
  return w.tile_values.data();
}

// values: for the columns at which `coefficients` starts; values of kv head `block`.
template <class Real>
void TileOutput<Real>::add_product(int32_t block, const Real* coefficients, const Real* values, int32_t columns,
                                   std::vector<Real>& out) const {
  if (columns <= 0) return;
  const int32_t group_rows = heads_ / shape_.blocks * rows_;
  kernels::multiply(coefficients + int64_t(block) * group_rows * columns_, columns_, group_rows, values, columns,
                    v_dim_, out.data() + int64_t(block) * group_rows * v_dim_, v_dim_, true);
}

template class TileOutput<float>;
template class TileOutput<double>;

}  // namespace kvreplay
