#pragma once
#include "core/linear.hpp"
#include "core/philox.hpp"

namespace kvreplay {

// Standard normal number i of a stream. Two uniforms make two numbers, the cosine first (Box and Muller).
inline double gaussian(const Rng& rng, RngStream stream, int64_t i) {
  constexpr double kLeast = 0x1p-53, kTau = 6.283185307179586;
  const double u = rng.uniform(stream, i - i % 2), angle = kTau * rng.uniform(stream, i - i % 2 + 1);
  const double radius = std::sqrt(-2 * std::log(u > kLeast ? u : kLeast));
  return radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

// A Gaussian matrix [d, m], row-major, orthogonalised in blocks of d columns, times sqrt(d).
inline void draw_sketch(const Team auto& team, const Rng& rng, std::span<double> a, int32_t d, int32_t m) {
  team.each(d * m, [&](int32_t i) { a[size_t(i)] = gaussian(rng, RngStream::sketch_matrix, i); });
  for (int32_t j = 0; j < m; j += d) orthonormalise(team, a, d, m, j, m - j < d ? m - j : d);
  team.each(d * m, [&](int32_t i) { a[size_t(i)] *= std::sqrt(double(d)); });
}

}  // namespace kvreplay
