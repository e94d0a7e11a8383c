#include "base/matrices.hpp"

#include <Eigen/Eigenvalues>
#include <Eigen/QR>
#include <algorithm>
#include <iterator>

namespace kvreplay {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Solver = Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd>;

std::vector<double> values_of(const Solver& solved) {
  return {solved.eigenvalues().data(), solved.eigenvalues().data() + solved.eigenvalues().size()};
}

// Eigenvectors are columns, stored one after the other.
Spectrum spectrum_of(const Solver& solved) {
  return {values_of(solved),
          {solved.eigenvectors().data(), solved.eigenvectors().data() + solved.eigenvectors().size()}};
}

// The solver reads the lower triangle by columns.
Eigen::MatrixXd by_columns(std::span<const double> matrix, int32_t n) {
  return Eigen::Map<const Matrix>(matrix.data(), n, n);
}

}  // namespace

std::vector<float> product_of(std::span<const float> a, std::span<const float> b, size_t inner) {
  const size_t n = b.size() / inner;
  std::vector<float> product;
  product.reserve(a.size() / inner * n);
  std::vector<double> sums(n);
  for (size_t row = 0; row < a.size(); row += inner) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (size_t j = 0; j < inner; ++j)
      for (size_t i = 0; i < n; ++i) sums[i] += static_cast<double>(a[row + j]) * static_cast<double>(b[j * n + i]);
    std::transform(sums.begin(), sums.end(), std::back_inserter(product),
                   [](double x) { return static_cast<float>(x); });
  }
  return product;
}

std::vector<double> orthogonal_factor(const std::vector<double>& matrix, int32_t n) {
  const Eigen::HouseholderQR<Matrix> qr(Eigen::Map<const Matrix>(matrix.data(), n, n));
  Matrix q = qr.householderQ();
  for (int32_t c = 0; c < n; ++c)
    if (qr.matrixQR()(c, c) < 0) q.col(c) *= -1;
  return {q.data(), q.data() + q.size()};
}

Spectrum spectrum_of(std::span<const double> matrix, int32_t n) { return spectrum_of(Solver(by_columns(matrix, n))); }

std::vector<double> eigenvalues_of(std::span<const double> matrix, int32_t n) {
  return values_of(Solver(by_columns(matrix, n), Eigen::EigenvaluesOnly));
}

Spectrum spectrum_of_tridiagonal(std::span<const double> diagonal, std::span<const double> off) {
  using Vector = Eigen::Map<const Eigen::VectorXd>;
  Solver solved;
  solved.computeFromTridiagonal(Vector(diagonal.data(), int64_t(diagonal.size())),
                                Vector(off.data(), int64_t(off.size())), Eigen::ComputeEigenvectors);
  return spectrum_of(solved);
}

}  // namespace kvreplay
