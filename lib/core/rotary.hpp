#pragma once
#include <cmath>
#include <span>

#include "core/team.hpp"
#include "core/token.hpp"

// Rotary embedding of vectors in double (convention C15).

namespace kvreplay {

// (x, y) <- (c x - s y, s x + c y) for pair i of a vector whose coordinates are `stride` apart.
inline void rotate_pair(const RopeView& rope, int32_t i, double c, double s, double* vector, int64_t stride = 1) {
  double& x = vector[(rope.interleaved ? 2 * i : i) * stride];
  double& y = vector[(rope.interleaved ? 2 * i + 1 : i + rope.pairs) * stride];
  const double turned = c * x - s * y;
  y = s * x + c * y;
  x = turned;
}

// The rotation of each pair, averaged over some positions.
struct AverageRotation {
  std::span<double> cosines, sines;

  // Averages over positions next .. next + count - 1.
  void find(const Team auto& team, const RopeView& rope, int32_t next, int32_t count) const {
    team.each(rope.pairs, [&](int32_t i) {
      double c = 0, s = 0;
      for (int32_t f = 0; f < count; ++f) {
        c += std::cos((next + f) * rope.inv_freq[i]);
        s += std::sin((next + f) * rope.inv_freq[i]);
      }
      cosines[size_t(i)] = c / count;
      sines[size_t(i)] = s / count;
    });
  }
  void turn(const RopeView& rope, int32_t i, double* vector, int64_t stride = 1) const {
    rotate_pair(rope, i, cosines[size_t(i)], sines[size_t(i)], vector, stride);
  }
};

// Modulus of pair f of a vector as a complex number.
double modulus(const RopeView& rope, auto vector, int32_t f) {
  const double x = double(vector[size_t(rope.interleaved ? 2 * f : f)]);
  const double y = double(vector[size_t(rope.interleaved ? 2 * f + 1 : f + rope.pairs)]);
  return std::sqrt(x * x + y * y);
}

// Rotates forward by `positions`, or back if negative. An attention factor is left in.
inline void rotate(const Team auto& team, const RopeView& rope, double positions, double* vector) {
  team.each(rope.pairs, [&](int32_t i) {
    const double angle = positions * rope.inv_freq[i];
    rotate_pair(rope, i, std::cos(angle), std::sin(angle), vector);
  });
}

// Writes to `vector` a recorded key or query before the rotation by its position, without the attention factor.
template <class Real>
void unrotate(const Team auto& team, const RopeView& rope, int32_t position, std::span<const Real> recorded,
              std::span<double> vector) {
  team.each(int32_t(recorded.size()), [&](int32_t c) {
    vector[size_t(c)] = double(recorded[size_t(c)]) / (c < 2 * rope.pairs ? rope.attention_factor : 1);
  });
  rotate(team, rope, -position, vector.data());
}

// Mean of the prompt's vectors vector(row) before rotation; an attention factor is left in. one: [dim] scratch.
template <class Real>
void mean_before_rotation(const Team auto& team, const Prompt<Real>& prompt, const RopeView& rope, auto vector,
                          std::span<double> one, std::span<double> mean) {
  const int32_t dim = int32_t(mean.size()), rows = prompt.size();
  team.each(dim, [&](int32_t c) { mean[size_t(c)] = 0; });
  for (int32_t row = 0; row < rows; ++row) {
    const auto x = vector(row);
    team.each(dim, [&](int32_t c) { one[size_t(c)] = double(x[size_t(c)]); });
    rotate(team, rope, -prompt.position(row), one.data());
    team.each(dim, [&](int32_t c) { mean[size_t(c)] += one[size_t(c)] / rows; });
  }
}

}  // namespace kvreplay
