#include "replay/tile_output.hpp"

#include "kernels/kernels.hpp"

namespace kvreplay {

template <class Real>
void TileOutput<Real>::close(const HeadStream<Real>& stream, LaneWorkspace<Real>& w,
                             LaneTile<Real>& result) const {
  w.tile_values.resize(size_t(columns_) * size_t(v_dim_));
  w.product.resize(size_t(heads_ / shape_.blocks) * size_t(rows_) * size_t(v_dim_));
  for (int32_t b = 0; b < shape_.blocks; ++b) {
    const Real* values = stream.block_values(b);
    for (int32_t c = 0; c < columns_; ++c)
      std::copy_n(values + int64_t(tokens_[size_t(c)]) * v_dim_, v_dim_,
                  w.tile_values.data() + int64_t(c) * v_dim_);
    multiply(b, coefficients_, columns_, w, result.out);
    if (!result.prefix.out.empty()) multiply(b, coefficients_, prefix_columns(), w, result.prefix.out);
    if (set_coefficients_ != nullptr) multiply(b, set_coefficients_, columns_, w, result.set.out);
  }
}

// The first `columns` of the coefficients of kv head `block`.
template <class Real>
void TileOutput<Real>::multiply(int32_t block, const Real* coefficients, int32_t columns,
                                LaneWorkspace<Real>& w, std::vector<Real>& out) const {
  if (columns == 0 || rows_ == 0) return;
  const int32_t group_rows = heads_ / shape_.blocks * rows_;
  kernels::multiply(coefficients + int64_t(block) * group_rows * columns_, columns_, group_rows,
                    w.tile_values.data(), columns, v_dim_, w.product.data(), v_dim_);
  Real* to = out.data() + int64_t(block) * group_rows * v_dim_;
  for (int64_t i = 0; i < int64_t(group_rows) * v_dim_; ++i) to[i] += w.product[size_t(i)];
}

template class TileOutput<float>;
template class TileOutput<double>;

}  // namespace kvreplay
