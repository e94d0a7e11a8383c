#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace kvreplay {

// Dense algebra that row formats need once for a head stream. Matrices are row-major. The only file of the room that
// sees Eigen.

// Q of a matrix [n, n] = Q R, where R has a positive diagonal.
std::vector<double> orthogonal_factor(const std::vector<double>& matrix, int32_t n);

// Mean of rows [*, width], and eigenvalues (falling, none below 0) and eigenvectors, a row each, of their covariance.
struct PrincipalAxes {
  std::vector<double> mean, variances, axes;
};
PrincipalAxes principal_axes(std::span<const double> rows, int32_t width);

}  // namespace kvreplay
