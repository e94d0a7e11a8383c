#pragma once
#include <cstdint>
#include <span>
#include <vector>

// Dense algebra. Matrices are row-major.

namespace kvreplay {

// a [m, inner] * b [inner, n], in double precision.
std::vector<float> product_of(std::span<const float> a, std::span<const float> b, size_t inner);

// Q of a matrix [n, n] = Q R, where R has a positive diagonal.
std::vector<double> orthogonal_factor(const std::vector<double>& matrix, int32_t n);

// Eigenvalues of a symmetric matrix, ascending, and eigenvectors [n, n], one per row.
struct Spectrum {
  std::vector<double> values, vectors;
};
// matrix: [n, n]; only the lower triangle is read.
Spectrum spectrum_of(std::span<const double> matrix, int32_t n);
std::vector<double> eigenvalues_of(std::span<const double> matrix, int32_t n);
// diagonal: [n]; off: [n - 1], next to the diagonal.
Spectrum spectrum_of_tridiagonal(std::span<const double> diagonal, std::span<const double> off);

}  // namespace kvreplay
