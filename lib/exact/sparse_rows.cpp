#include "exact/sparse_rows.hpp"

#include <algorithm>

namespace kvreplay {

template <class Real>
void SparseRows<Real>::fill(Tile<Real>& tile, const std::function<std::vector<int32_t>(int32_t t)>& rows_from) {
  if (!holds(tile)) {
    batch_.rows = rows_from(tile.rows.front());
    batch_.scored.assign(batch_.rows.size(), 1);
    batch_.begin = batch_.rows.front(), batch_.end = batch_.rows.back() + 1;
    exact_.exact_pass(batch_);
  }
  copy_rows(tile);
}

template <class Real>
bool SparseRows<Real>::holds(const Tile<Real>& tile) const {
  return std::includes(batch_.rows.begin(), batch_.rows.end(), tile.rows.begin(), tile.rows.end());
}

template <class Real>
void SparseRows<Real>::copy_rows(Tile<Real>& tile) const {
  const size_t rows = tile.rows.size(), cells = size_t(batch_.heads) * rows, v_dim = size_t(batch_.v_dim);
  tile.heads = batch_.heads, tile.blocks = batch_.blocks, tile.v_dim = batch_.v_dim;
  tile.divided = batch_.divided;
  tile.stride = padded(tile.end);
  tile.strip.resize(cells * size_t(tile.stride));
  tile.shift.resize(cells);
  for (auto numbers : {&tile.z, &tile.l2, &tile.z_prompt, &tile.z_later}) numbers->resize(cells);
  for (auto outputs : {&tile.out, &tile.of_prompt, &tile.of_later}) outputs->resize(cells * v_dim);
  for (int32_t h = 0; h < tile.heads; ++h)
    for (int32_t r = 0; r < int32_t(rows); ++r) {
      const auto found = std::lower_bound(batch_.rows.begin(), batch_.rows.end(), tile.rows[size_t(r)]);
      const int32_t row = int32_t(found - batch_.rows.begin());
      const size_t from = size_t(batch_.at(h, row)), to = size_t(tile.at(h, r));
      const int64_t held = std::min<int64_t>(tile.stride, tile.rows[size_t(r)] + 1);
      Real* const strip = tile.strip.data() + int64_t(to) * tile.stride;
      std::fill(std::copy_n(batch_.strip_row(h, row), held, strip), strip + tile.stride, Real(0));
      tile.shift[to] = batch_.shift[from], tile.z[to] = batch_.z[from], tile.l2[to] = batch_.l2[from];
      const auto copy = [&](const std::vector<Real>& outputs, std::vector<Real>& into) {
        std::copy_n(outputs.data() + from * v_dim, v_dim, into.data() + to * v_dim);
      };
      copy(batch_.out, tile.out), copy(batch_.of_later, tile.of_later);
      if (!tile.divided) continue;
      copy(batch_.of_prompt, tile.of_prompt);
      tile.z_prompt[to] = batch_.z_prompt[from], tile.z_later[to] = batch_.z_later[from];
    }
}

template class SparseRows<float>;
template class SparseRows<double>;

}  // namespace kvreplay
