#include "exact/row_scores.hpp"

#include <cmath>

namespace kvreplay {

template <class Real>
void score_row(const HeadStream<Real>& stream, const Tile<Real>& tile, int32_t head, int32_t row, TokenScore which,
               double* to) {
  const size_t at = size_t(tile.at(head, row)), width = size_t(tile.v_dim);
  const int32_t t = tile.rows[size_t(row)];
  const Real* const strip = tile.strip_row(head, row);
  const Real* const values = stream.block_values(stream.shape.block_of(head));
  const std::span<const Real> output{tile.out.data() + at * width, width};
  for (int32_t i = stream.first_key(t); i <= t; ++i) {
    const double e = double(strip[i]);
    if (e > 0)
      to[i] = token_score(which, e / tile.z[at], std::log(e) + double(tile.shift[at]),
                          std::span<const Real>{values + size_t(i) * width, width}, output);
  }
}

template void score_row(const HeadStream<float>&, const Tile<float>&, int32_t, int32_t, TokenScore, double*);
template void score_row(const HeadStream<double>&, const Tile<double>&, int32_t, int32_t, TokenScore, double*);

}  // namespace kvreplay
