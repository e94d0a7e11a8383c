#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/bf16.hpp"
#include "kernels/table.hpp"

// The reference path, with which every other path is compared: Eigen, for any machine.

namespace kvreplay::kernels {
namespace {

template <class Real>
using Matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Real>
using View = Eigen::Map<const Matrix<Real>, 0, Eigen::OuterStride<>>;
template <class Real>
using Target = Eigen::Map<Matrix<Real>, 0, Eigen::OuterStride<>>;

template <class Real>
void scores(const Real* q, int64_t ldq, int32_t m, const Real* keys, int32_t d, int32_t count, Real* out, int64_t ldo) {
  const View<Real> queries(q, m, d, Eigen::OuterStride<>(ldq));
  for (int32_t i = 0; i < count; i += kPanel) {
    const Real* panel = keys + int64_t(i) * d;
    const int32_t width = std::min(kPanel, count - i);
    Target<Real>(out + i, m, width, Eigen::OuterStride<>(ldo)).noalias() =
        queries * View<Real>(panel, d, width, Eigen::OuterStride<>(kPanel));
  }
}

template <class Real>
void multiply(const Real* a, int64_t lda, int32_t m, const Real* b, int32_t k, int32_t n, Real* out, int64_t ldo,
              bool add) {
  Target<Real> to(out, m, n, Eigen::OuterStride<>(ldo));
  if (!add) to.setZero();
  to.noalias() += View<Real>(a, m, k, Eigen::OuterStride<>(lda)) * View<Real>(b, k, n, Eigen::OuterStride<>(n));
}

// The smallest argument whose exponential is a normal number; below it, Eigen's exponential does not become 0.
constexpr float lowest_exponent(float) { return -87.3365402f; }
constexpr double lowest_exponent(double) { return -708.39641853226408; }

template <class Real>
RowSums exponentiate(Real* row, int32_t n, Real scale, Real shift) {
  Eigen::Map<Eigen::Array<Real, Eigen::Dynamic, 1>> x(row, n);
  x = x * scale - shift;
  x = (x < lowest_exponent(Real())).select(Real(0), x.exp());
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
  const auto p = Eigen::Map<const Eigen::Array<Real, Eigen::Dynamic, 1>>(e, n).template cast<double>() * weight;
  if (carry == 0) to = p;
  else to = carry * to + p;
}
template <class Real>
Distance distance(const Real* mine, const Real* exact, int32_t n) {
  Distance s{};
  for (int32_t c = 0; c < n; ++c) {
    const double o = double(exact[c]), e = double(mine[c]) - o;
    s.error2 += e * e, s.exact2 += o * o;
  }
  return s;
}
template <class Real>
Comparison compare(const Real* mine, const Real* exact, int32_t n, double tau) {
  Comparison s{};
  for (int32_t c = 0; c < n; ++c) {
    const double z = double(mine[c]), o = double(exact[c]), p = o > Comparison::kClamp ? o : Comparison::kClamp;
    const double numerator = z * tau - o;
    s.mine2 += z * z, s.inner += z * o, s.positive2 += p * p, s.numerator2 += numerator * numerator;
  }
  return s;
}
template <class Real>
void project(const Real* mine, const Real* exact, const uint16_t* directions, int32_t count, int32_t n, float* out) {
  for (int32_t i = 0; i < count; ++i) {
    Real sum = 0;
    for (int32_t c = 0; c < n; ++c) sum += Real(from_bf16(directions[int64_t(i) * n + c])) * (mine[c] - exact[c]);
    out[i] = float(sum);
  }
}
template <class Real>
void add(const Real* a, const Real* b, Real weight, int64_t n, Real* out) {
  using Row = Eigen::Array<Real, Eigen::Dynamic, 1>;
  Eigen::Map<Row>(out, n) = Eigen::Map<const Row>(a, n) + Eigen::Map<const Row>(b, n) * weight;
}
template <class Real>
void finish(const Real* a, const Real* b, Real factor, int64_t n, Real* out) {
  using Row = Eigen::Array<Real, Eigen::Dynamic, 1>;
  Eigen::Map<Row>(out, n) = (Eigen::Map<const Row>(a, n) + Eigen::Map<const Row>(b, n)) * factor;
}
Lowest lowest(const double* score, const double* guard, const int32_t* token, int32_t n) {
  Lowest best{INFINITY, -1};
  for (int32_t i = 0; i < n; ++i) {
    const double s = score[i] + guard[i];
    if (s < best.score || (s == best.score && s < INFINITY && token[i] > best.token)) best = {s, token[i]};
  }
  return best;
}

template <class Real>
Real row_maximum(const Real* row, int32_t n) {
  if (n == 0) return -std::numeric_limits<Real>::infinity();
  return Eigen::Map<const Eigen::Array<Real, Eigen::Dynamic, 1>>(row, n).template maxCoeff<Eigen::PropagateNaN>();
}

template <class Real>
double sum_x_log_x(const Real* row, int32_t n) {
  // The vectorised logarithm does not handle denormals; their terms are far below rounding.
  constexpr Real kSmallest = std::numeric_limits<Real>::min();
  const auto x = Eigen::Map<const Eigen::Array<Real, Eigen::Dynamic, 1>>(row, n).template cast<double>();
  return (x < double(kSmallest)).select(0.0, x * x.log()).sum();
}

void logarithms(double* x, int32_t n) {
  Eigen::Map<Eigen::ArrayXd> row(x, n);
  row = row.log();
}

void squared_distances(const double* others, const double* point, int32_t d, double* out) {
  using Lanes = Eigen::Array<double, kLanes, 1>;
  Lanes sum = Lanes::Zero();
  for (int32_t c = 0; c < d; ++c) sum += (Eigen::Map<const Lanes>(others + int64_t(c) * kLanes) - point[c]).square();
  Eigen::Map<Lanes>{out} = sum;
}

template <class Real>
constexpr Functions<Real> functions() {
  return {scores<Real>,  multiply<Real>, exponentiate<Real>, row_maximum<Real>, gather<Real>,
          sum<Real>,     weigh<Real>,    accumulate<Real>,   distance<Real>,    compare<Real>,
          project<Real>, add<Real>,      finish<Real>,       sum_x_log_x<Real>};
}

}  // namespace

const Table kPortable = {"portable", functions<float>(), functions<double>(), squared_distances, logarithms, lowest,
                         nullptr};

}  // namespace kvreplay::kernels
