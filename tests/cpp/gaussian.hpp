#pragma once
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace kvreplay::test {

template <class Real>
std::vector<Real> gaussian(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<Real> x(n);
  for (Real& number : x) number = Real(normal(random));
  return x;
}

}  // namespace kvreplay::test
