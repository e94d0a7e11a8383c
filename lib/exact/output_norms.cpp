#include "exact/output_norms.hpp"

#include <cassert>
#include <cmath>

namespace kvreplay {

template <class Real>
std::vector<double> output_norms(const HeadStream<Real>& stream, int32_t head, int32_t first, int32_t count,
                                 VectorNorm norm) {
  assert(stream.output_width > 0);
  const size_t v_dim = size_t(stream.shape.v_dim), width = size_t(stream.output_width);
  const float* const weights = stream.output_weights.data() + size_t(head) * v_dim * width;
  const Real* value = stream.block_values(stream.shape.block_of(head)) + size_t(first) * v_dim;
  std::vector<double> norms(static_cast<size_t>(count)), projected(width);
  for (double& length : norms) {
    std::fill(projected.begin(), projected.end(), 0.0);
    for (size_t c = 0; c < v_dim; ++c) {
      const double x = double(value[c]);
      const float* const row = weights + c * width;
      for (size_t o = 0; o < width; ++o) projected[o] += x * double(row[o]);
    }
    double sum = 0;
    for (const double y : projected) sum += norm == VectorNorm::l1 ? std::abs(y) : y * y;
    length = norm == VectorNorm::l1 ? sum : std::sqrt(sum);
    value += v_dim;
  }
  return norms;
}

template <class Real>
std::vector<double> mean_output_norms(const HeadStream<Real>& stream, int32_t first_head, int32_t heads) {
  std::vector<double> mean(static_cast<size_t>(stream.prompt), 0);
  for (int32_t h = first_head; h < first_head + heads; ++h) {
    const std::vector<double> own = output_norms(stream, h, 0, stream.prompt, VectorNorm::l1);
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += own[i] / heads;
  }
  return mean;
}

template std::vector<double> output_norms(const HeadStream<float>&, int32_t, int32_t, int32_t, VectorNorm);
template std::vector<double> output_norms(const HeadStream<double>&, int32_t, int32_t, int32_t, VectorNorm);
template std::vector<double> mean_output_norms(const HeadStream<float>&, int32_t, int32_t);
template std::vector<double> mean_output_norms(const HeadStream<double>&, int32_t, int32_t);

}  // namespace kvreplay
