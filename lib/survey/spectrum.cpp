#include "survey/spectrum.hpp"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

namespace kvreplay {

Spread spread_of(std::span<const double> points, int32_t dim) {
  using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  constexpr Eigen::Index kDirections = 16;
  const auto n = Eigen::Index(points.size()) / dim;
  Rows x = Eigen::Map<const Rows>(points.data(), n, dim);
  const Eigen::RowVectorXd first = x.row(0);
  x.rowwise() -= first;  // so that equal points have no variance at all, not that of rounding
  const Eigen::RowVectorXd mean = x.colwise().mean();
  x.rowwise() -= mean;
  Spread spread;
  spread.rms = std::sqrt(x.squaredNorm() / double(n));
  if (!(spread.rms > 0)) return spread;
  const Eigen::MatrixXd scatter = x.transpose() * x;
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(scatter, Eigen::EigenvaluesOnly);
  const Eigen::ArrayXd variance = solver.eigenvalues().array().max(0.0);  // ascending
  const Eigen::ArrayXd share = variance / variance.sum();
  spread.spectral_share_16 = share.tail(std::min<Eigen::Index>(kDirections, dim)).sum();
  double entropy = 0;
  for (const double p : share)
    if (p > 0) entropy -= p * std::log(p);
  spread.effective_rank = std::exp(entropy);
  return spread;
}

}  // namespace kvreplay
