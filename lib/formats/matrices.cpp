#include "formats/matrices.hpp"

#include <Eigen/Eigenvalues>
#include <Eigen/QR>
#include <algorithm>

namespace kvreplay {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

std::vector<double> orthogonal_factor(const std::vector<double>& matrix, int32_t n) {
  const Eigen::HouseholderQR<Matrix> qr(Eigen::Map<const Matrix>(matrix.data(), n, n));
  Matrix q = qr.householderQ();
  for (int32_t c = 0; c < n; ++c)
    if (qr.matrixQR()(c, c) < 0) q.col(c) *= -1;
  return {q.data(), q.data() + q.size()};
}

PrincipalAxes principal_axes(std::span<const double> rows, int32_t width) {
  const Eigen::Index w = width, n = Eigen::Index(rows.size()) / w;
  const Eigen::Map<const Matrix> x(rows.data(), n, w);
  const Eigen::RowVectorXd mean = x.colwise().mean();
  const Matrix centred = x.rowwise() - mean;
  const Eigen::MatrixXd covariance = centred.transpose() * centred / double(n);
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solved(covariance);
  PrincipalAxes all{{mean.data(), mean.data() + w}, {}, {}};
  for (Eigen::Index j = w - 1; j >= 0; --j) {  // the solver's are ascending
    all.variances.push_back(std::max(0.0, solved.eigenvalues()[j]));
    for (Eigen::Index i = 0; i < w; ++i) all.axes.push_back(solved.eigenvectors()(i, j));
  }
  return all;
}

}  // namespace kvreplay
