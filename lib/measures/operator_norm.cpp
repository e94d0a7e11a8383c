#include "measures/operator_norm.hpp"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <vector>

namespace kvreplay {

namespace {

// Has a part in every direction that values are likely to take.
Eigen::VectorXd generic_vector(int64_t d) {
  Eigen::VectorXd v(d);
  for (int64_t i = 0; i < d; ++i) v(i) = std::sin(double(i) + 1);
  return v;
}

}  // namespace

ValueNorms::ValueNorms(int32_t v_dim, bool spectral) : start_(generic_vector(v_dim)) {
  if (spectral) gram_ = Eigen::MatrixXd::Zero(v_dim, v_dim);
}

template <class Real>
void ValueNorms::add(const Real* value) {
  const Eigen::VectorXd v =
      Eigen::Map<const Eigen::Matrix<Real, Eigen::Dynamic, 1>>(value, start_.size()).template cast<double>();
  if (gram_.size() > 0) gram_.selfadjointView<Eigen::Lower>().rankUpdate(v);
  const double square = v.squaredNorm();
  squares_ += square;
  largest_ = std::max(largest_, std::sqrt(square));
}
template void ValueNorms::add(const float*);
template void ValueNorms::add(const double*);

double ValueNorms::frobenius() const { return std::sqrt(squares_); }

// Lanczos with full re-orthogonalisation (Parlett, "The Symmetric Eigenvalue Problem", 1998, section
// 13.1), stopped by the bound residual^2 / value on the error of a well separated Ritz value, and
// exact at the latest when the Krylov space is the whole space.
double ValueNorms::spectral() {
  const int64_t d = gram_.rows();
  if (!(gram_.trace() > 0)) return 0;
  constexpr double kTolerance = 1e-12;
  std::vector<Eigen::VectorXd> basis{start_.normalized()};
  std::vector<double> diagonal, off;
  Eigen::VectorXd ritz;
  double value = 0;
  for (int64_t step = 1; step <= d; ++step) {
    Eigen::VectorXd next = gram_.selfadjointView<Eigen::Lower>() * basis.back();
    diagonal.push_back(basis.back().dot(next));
    for (int pass = 0; pass < 2; ++pass)
      for (const Eigen::VectorXd& b : basis) next -= b.dot(next) * b;
    const double length = next.norm();
    const bool closed = length <= 1e-14 * gram_.trace();
    if (step % 4 == 0 || closed || step == d) {
      Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> small;
      const Eigen::Map<const Eigen::VectorXd> alpha(diagonal.data(), step), beta(off.data(), step - 1);
      small.computeFromTridiagonal(alpha, beta, Eigen::ComputeEigenvectors);
      value = small.eigenvalues()(step - 1);
      ritz = small.eigenvectors().col(step - 1);
      const double residual = length * std::abs(ritz(step - 1));
      const double gap = step > 1 ? value - small.eigenvalues()(step - 2) : value;
      if (closed || residual * residual <= kTolerance * value * std::max(gap, 1e-6 * value)) break;
    }
    basis.push_back(next / length);
    off.push_back(length);
  }
  // A little of everything keeps directions reachable that later values open.
  Eigen::VectorXd top = Eigen::VectorXd::Zero(d);
  for (int64_t i = 0; i < ritz.size(); ++i) top += ritz(i) * basis[size_t(i)];
  start_ = top + 1e-6 * generic_vector(d);
  return std::sqrt(std::max(value, 0.0));
}

}  // namespace kvreplay
