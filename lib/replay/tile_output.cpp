#include "replay/tile_output.hpp"

#include "kernels/kernels.hpp"

namespace kvreplay {

// Values of a few tokens at a time are gathered, so that products read them from the first-level cache.
constexpr int32_t kColumnsAtOnce = 96;

template <class Real>
void TileOutput<Real>::close(const HeadStream<Real>& stream, LaneWorkspace<Real>& w,
                             LaneTile<Real>& result) const {
  if (rows_ == 0) return;
  const int32_t prefix = result.prefix.out.empty() ? 0 : prefix_columns();
  w.tile_values.resize(size_t(kColumnsAtOnce) * size_t(v_dim_));
  for (int32_t b = 0; b < shape_.blocks; ++b) {
    const Real* values = stream.block_values(b);
    for (int32_t first = 0; first < columns_; first += kColumnsAtOnce) {
      const int32_t end = std::min(columns_, first + kColumnsAtOnce);
      for (int32_t c = first; c < end; ++c)
        std::copy_n(values + int64_t(tokens_[size_t(c)]) * v_dim_, v_dim_,
                    w.tile_values.data() + int64_t(c - first) * v_dim_);
      add_product(b, coefficients_ + first, end - first, w, result.out);
      add_product(b, coefficients_ + first, std::min(end, prefix) - first, w, result.prefix.out);
      if (set_coefficients_ != nullptr)
        add_product(b, set_coefficients_ + first, end - first, w, result.set.out);
    }
  }
}

// Of the gathered columns, the first of which has `coefficients`; those of kv head `block`.
template <class Real>
void TileOutput<Real>::add_product(int32_t block, const Real* coefficients, int32_t columns,
                                   const LaneWorkspace<Real>& w, std::vector<Real>& out) const {
  if (columns <= 0) return;
  const int32_t group_rows = heads_ / shape_.blocks * rows_;
  kernels::multiply(coefficients + int64_t(block) * group_rows * columns_, columns_, group_rows,
                    w.tile_values.data(), columns, v_dim_, out.data() + int64_t(block) * group_rows * v_dim_,
                    v_dim_, true);
}

template class TileOutput<float>;
template class TileOutput<double>;

}  // namespace kvreplay
