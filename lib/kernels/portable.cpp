#include <Eigen/Core>
#include <algorithm>
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
KeyPanels<Real>::KeyPanels(const Real* k, int32_t n, int32_t dim) : keys(n), d(dim) {
  const int32_t panels = (n + kPanel - 1) / kPanel;
  numbers.assign(size_t(panels) * size_t(dim) * kPanel, Real(0));
  for (int32_t i = 0; i < n; ++i)
    for (int32_t c = 0; c < dim; ++c)
      numbers[(size_t(i / kPanel) * size_t(dim) + size_t(c)) * kPanel + size_t(i % kPanel)] =
          k[int64_t(i) * dim + c];
}

template <class Real>
void scores(const Real* q, int64_t ldq, int32_t m, const KeyPanels<Real>& keys, int32_t first, int32_t count,
            Real* out, int64_t ldo) {
  const View<Real> queries(q, m, keys.d, Eigen::OuterStride<>(ldq));
  for (int32_t i = 0; i < count; i += kPanel) {
    const Real* panel = keys.numbers.data() + int64_t(first + i) * keys.d;
    const int32_t width = std::min(kPanel, count - i);
    Target<Real>(out + i, m, width, Eigen::OuterStride<>(ldo)).noalias() =
        queries * View<Real>(panel, keys.d, width, Eigen::OuterStride<>(kPanel));
  }
}

template <class Real>
void multiply(const Real* a, int64_t lda, int32_t m, const Real* b, int32_t k, int32_t n, Real* out,
              int64_t ldo, bool add) {
  Target<Real> to(out, m, n, Eigen::OuterStride<>(ldo));
  if (!add) to.setZero();
  to.noalias() +=
      View<Real>(a, m, k, Eigen::OuterStride<>(lda)) * View<Real>(b, k, n, Eigen::OuterStride<>(n));
}

template <class Real>
RowSums exponentiate(Real* row, int32_t n, Real scale, Real shift) {
  Eigen::Map<Eigen::Array<Real, Eigen::Dynamic, 1>> x(row, n);
  x = (x * scale - shift).exp();
  const auto e = x.template cast<double>();
  return {e.sum(), e.square().sum()};
}

template <class Real>
double gather(const Real* from, const int32_t* index, int32_t n, Real* out) {
  double sum = 0;
  for (int32_t i = 0; i < n; ++i) {
    out[i] = from[index[i]];
    sum += double(out[i]);
  }
  return sum;
}

template <class Real>
double sum(const Real* x, int32_t n) {
  return Eigen::Map<const Eigen::Array<Real, Eigen::Dynamic, 1>>(x, n).template cast<double>().sum();
}
template <class Real>
double weigh(const Real* x, const Real* factor, int32_t n, Real* out) {
  using Row = Eigen::Array<Real, Eigen::Dynamic, 1>;
  Eigen::Map<Row> to(out, n);
  to = Eigen::Map<const Row>(x, n) * Eigen::Map<const Row>(factor, n);
  return to.template cast<double>().sum();
}
template <class Real>
void accumulate(const Real* e, double weight, double carry, int32_t n, double* score) {
  Eigen::Map<Eigen::ArrayXd> to(score, n);
  const auto p =
      Eigen::Map<const Eigen::Array<Real, Eigen::Dynamic, 1>>(e, n).template cast<double>() * weight;
  if (carry == 0) to = p;
  else to = carry * to + p;
}
Lowest lowest(const double* score, const double* guard, const int32_t* token, int32_t n) {
  Lowest best{INFINITY, -1};
  for (int32_t i = 0; i < n; ++i)
    if (const double s = score[i] + guard[i]; s < best.score || (s == best.score && token[i] > best.token))
      best = {s, token[i]};
  return best;
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

template struct KeyPanels<float>;
template struct KeyPanels<double>;
template void scores(const float*, int64_t, int32_t, const KeyPanels<float>&, int32_t, int32_t, float*,
                     int64_t);
template void scores(const double*, int64_t, int32_t, const KeyPanels<double>&, int32_t, int32_t, double*,
                     int64_t);
template void multiply(const float*, int64_t, int32_t, const float*, int32_t, int32_t, float*, int64_t, bool);
template void multiply(const double*, int64_t, int32_t, const double*, int32_t, int32_t, double*, int64_t,
                       bool);
template RowSums exponentiate(float*, int32_t, float, float);
template RowSums exponentiate(double*, int32_t, double, double);
template double gather(const float*, const int32_t*, int32_t, float*);
template double gather(const double*, const int32_t*, int32_t, double*);
template double sum(const float*, int32_t);
template double sum(const double*, int32_t);
template double weigh(const float*, const float*, int32_t, float*);
template double weigh(const double*, const double*, int32_t, double*);
template void accumulate(const float*, double, double, int32_t, double*);
template void accumulate(const double*, double, double, int32_t, double*);
template float row_maximum(const float*, int32_t);
template double row_maximum(const double*, int32_t);
template double sum_x_log_x(const float*, int32_t);
template double sum_x_log_x(const double*, int32_t);

}  // namespace kvreplay::kernels

namespace kvreplay {
const char* isa_path() { return "portable"; }
}  // namespace kvreplay
