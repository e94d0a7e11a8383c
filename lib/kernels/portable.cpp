#include <Eigen/Core>
#include <cmath>
#include <limits>

#include "kernels/kernels.hpp"

namespace kvreplay::kernels {
namespace {

template <class Real>
using Matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Real>
using View = Eigen::Map<const Matrix<Real>, 0, Eigen::OuterStride<>>;
template <class Real>
using Target = Eigen::Map<Matrix<Real>, 0, Eigen::OuterStride<>>;

}  // namespace

template <class Real>
void multiply_transposed(const Real* a, int64_t lda, int32_t m, const Real* b, int32_t n, int32_t d,
                         Real* out, int64_t ldo) {
  Target<Real>(out, m, n, Eigen::OuterStride<>(ldo)).noalias() =
      View<Real>(a, m, d, Eigen::OuterStride<>(lda)) *
      View<Real>(b, n, d, Eigen::OuterStride<>(d)).transpose();
}

template <class Real>
void multiply(const Real* a, int64_t lda, int32_t m, const Real* b, int32_t k, int32_t n, Real* out,
              int64_t ldo) {
  Target<Real>(out, m, n, Eigen::OuterStride<>(ldo)).noalias() =
      View<Real>(a, m, k, Eigen::OuterStride<>(lda)) * View<Real>(b, k, n, Eigen::OuterStride<>(n));
}

template <class Real>
RowSums exponentiate(Real* row, int32_t n, Real shift) {
  Eigen::Map<Eigen::Array<Real, Eigen::Dynamic, 1>> x(row, n);
  x = (x - shift).exp();
  const auto e = x.template cast<double>();
  return {e.sum(), e.square().sum()};
}

template <class Real>
Real row_maximum(const Real* row, int32_t n) {
  return Eigen::Map<const Eigen::Array<Real, Eigen::Dynamic, 1>>(row, n).maxCoeff();
}

template <class Real>
double sum_x_log_x(const Real* row, int32_t n) {
  // The vectorised logarithm knows no denormals; what they would add is far below rounding.
  constexpr Real kSmallest = std::numeric_limits<Real>::min();
  const auto x = Eigen::Map<const Eigen::Array<Real, Eigen::Dynamic, 1>>(row, n).template cast<double>();
  return (x >= double(kSmallest)).select(x * x.log(), 0.0).sum();
}

void squared_distances(const double* others, const double* point, int32_t d, double* out) {
  using Lanes = Eigen::Array<double, kLanes, 1>;
  Lanes sum = Lanes::Zero();
  for (int32_t c = 0; c < d; ++c)
    sum += (Eigen::Map<const Lanes>(others + int64_t(c) * kLanes) - point[c]).square();
  Eigen::Map<Lanes>{out} = sum;
}

template void multiply_transposed(const float*, int64_t, int32_t, const float*, int32_t, int32_t, float*,
                                  int64_t);
template void multiply_transposed(const double*, int64_t, int32_t, const double*, int32_t, int32_t, double*,
                                  int64_t);
template void multiply(const float*, int64_t, int32_t, const float*, int32_t, int32_t, float*, int64_t);
template void multiply(const double*, int64_t, int32_t, const double*, int32_t, int32_t, double*, int64_t);
template RowSums exponentiate(float*, int32_t, float);
template RowSums exponentiate(double*, int32_t, double);
template float row_maximum(const float*, int32_t);
template double row_maximum(const double*, int32_t);
template double sum_x_log_x(const float*, int32_t);
template double sum_x_log_x(const double*, int32_t);

}  // namespace kvreplay::kernels

namespace kvreplay {
const char* isa_path() { return "portable"; }
}  // namespace kvreplay
