#include "exact/row_scores.hpp"

#include <cassert>
#include <cmath>

namespace kvreplay {

template <class Real>
void add_output_norms(HeadStream<Real>& stream, std::span<const float> weights) {
  if (stream.prompt == 0) return;
  const size_t prompt = size_t(stream.prompt), v_dim = size_t(stream.shape.v_dim), width = weights.size() / v_dim;
  const int32_t head = int32_t(stream.output_norms_l1.size() / prompt);
  const Real* value = stream.block_values(stream.shape.block_of(head));
  std::vector<double> projected(width);
  for (size_t i = 0; i < prompt; ++i, value += v_dim) {
    std::fill(projected.begin(), projected.end(), 0.0);
    for (size_t c = 0; c < v_dim; ++c) {
      const double x = double(value[c]);
      const float* const row = weights.data() + c * width;
      for (size_t o = 0; o < width; ++o) projected[o] += x * double(row[o]);
    }
    double sum = 0, squares = 0;
    for (const double y : projected) sum += std::abs(y), squares += y * y;
    stream.output_norms_l1.push_back(sum);
    stream.output_norms_l2.push_back(std::sqrt(squares));
  }
}

template <class Real>
std::vector<double> mean_output_norms(const HeadStream<Real>& stream, int32_t first_head, int32_t heads) {
  const size_t prompt = size_t(stream.prompt);
  assert(stream.output_norms_l1.size() >= size_t(first_head + heads) * prompt);
  std::vector<double> mean(prompt, 0);
  for (int32_t h = first_head; h < first_head + heads; ++h)
    for (size_t i = 0; i < prompt; ++i) mean[i] += stream.output_norms_l1[size_t(h) * prompt + i] / heads;
  return mean;
}

template void add_output_norms(HeadStream<float>&, std::span<const float>);
template void add_output_norms(HeadStream<double>&, std::span<const float>);
template std::vector<double> mean_output_norms(const HeadStream<float>&, int32_t, int32_t);
template std::vector<double> mean_output_norms(const HeadStream<double>&, int32_t, int32_t);

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
