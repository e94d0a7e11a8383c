#include "measures/operator_norm.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/matrices.hpp"

namespace kvreplay {

namespace {

using Vector = Eigen::VectorXd;

Eigen::Map<Eigen::MatrixXd> matrix(std::vector<double>& numbers, size_t rows) {
  return {numbers.data(), int64_t(rows), int64_t(rows)};
}
Eigen::Map<Vector> vector(std::vector<double>& numbers) { return {numbers.data(), int64_t(numbers.size())}; }

// A vector with a component in every direction that values are likely to take.
Vector generic_vector(int64_t d) {
  Vector v(d);
  for (int64_t i = 0; i < d; ++i) v(i) = std::sin(double(i) + 1);
  return v;
}

}  // namespace

ValueNorms::ValueNorms(int32_t v_dim, bool spectral) : start_(size_t(v_dim)) {
  vector(start_) = generic_vector(v_dim);
  if (spectral) gram_.assign(size_t(v_dim) * size_t(v_dim), 0.0);
}

template <class Real>
void ValueNorms::add(const Real* value) {
  const Vector v =
      Eigen::Map<const Eigen::Matrix<Real, Eigen::Dynamic, 1>>(value, int64_t(start_.size())).template cast<double>();
  if (!gram_.empty()) matrix(gram_, start_.size()).selfadjointView<Eigen::Lower>().rankUpdate(v);
  const double square = v.squaredNorm();
  squares_ += square;
  largest_ = std::max(largest_, std::sqrt(square));
}
template void ValueNorms::add(const float*);
template void ValueNorms::add(const double*);

double ValueNorms::frobenius() const { return std::sqrt(squares_); }

// Lanczos with full re-orthogonalisation (Parlett, "The Symmetric Eigenvalue Problem", 1998, section 13.1). Stops by
// the bound residual^2 / gap on the error of a well separated Ritz value; exact at the latest when the Krylov space is
// the whole space.
double ValueNorms::spectral() {
  const auto gram = matrix(gram_, start_.size());
  const int64_t d = gram.rows();
  if (!(gram.trace() > 0)) return 0;
  constexpr double kTolerance = 1e-12;
  std::vector<Vector> basis{vector(start_).normalized()};
  std::vector<double> diagonal, off;
  std::vector<double> ritz;
  double value = 0;
  for (int64_t step = 1; step <= d; ++step) {
    Vector next = gram.selfadjointView<Eigen::Lower>() * basis.back();
    diagonal.push_back(basis.back().dot(next));
    for (int pass = 0; pass < 2; ++pass)
      for (const Vector& b : basis) next -= b.dot(next) * b;
    const double length = next.norm();
    const bool closed = length <= 1e-14 * gram.trace();
    if (step % 4 == 0 || closed || step == d) {
      const Spectrum small = spectrum_of_tridiagonal(diagonal, off);
      value = small.values.back();
      ritz.assign(small.vectors.end() - step, small.vectors.end());
      const double residual = length * std::abs(ritz.back());
      const double gap = step > 1 ? value - small.values[size_t(step) - 2] : value;
      if (closed || residual * residual <= kTolerance * value * std::max(gap, 1e-6 * value)) break;
    }
    basis.push_back(next / length);
    off.push_back(length);
  }
  // Adds a small generic vector, so that the next start can reach directions that later values open.
  Vector top = Vector::Zero(d);
  for (size_t i = 0; i < ritz.size(); ++i) top += ritz[i] * basis[i];
  vector(start_) = top + 1e-6 * generic_vector(d);
  return std::sqrt(std::max(value, 0.0));
}

}  // namespace kvreplay
